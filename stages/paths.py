"""Where every artifact lives, relative to the current directory: the root of the repository or a worktree."""

from pathlib import Path

DATA = Path("data")
METRICS = DATA / "metrics"

PROMPTS = DATA / "prompts.parquet"
BASE = DATA / "base"
POLICY = DATA / "policy"
REFERENCE = DATA / "reference"
TRAINER_STATE = DATA / "trainer_state"
PROMPT_STATS = DATA / "prompt_stats.parquet"
SELECTION = DATA / "selection.parquet"
ROLLOUTS = DATA / "rollouts.parquet"
REWARDS = DATA / "rewards.parquet"
JUDGEMENTS = DATA / "judgements.parquet"
ADVANTAGES = DATA / "advantages.parquet"
GROUPS = DATA / "groups.parquet"
TRAINING_SET = DATA / "training_set.parquet"
NEXT_PROMPT_STATS = DATA / "next_prompt_stats.parquet"
NEXT_POLICY = DATA / "next_policy"
NEXT_TRAINER_STATE = DATA / "next_trainer_state"
TOKEN_LOGPROBS = DATA / "token_logprobs.parquet"
TRAIN_STEPS = DATA / "train_steps.parquet"
EVAL = DATA / "eval.parquet"
REPORT = DATA / "report.html"
HISTORY = DATA / "history.csv"
HEALTH = DATA / "health.json"

EXIT_RECORDS = Path(".rollbook/exit")
SAMPLES = Path(".rollbook/samples")
SCORES = Path(".rollbook/scores")
CHECKPOINTS = Path(".rollbook/update")
