"""Stage `evaluate`: held-out pass@k of the next policy, and of the first one where the run begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl

from pipeline.evaluation import choose_eval_prompts, evaluation_metrics
from pipeline.params import Params, SamplingParams
from pipeline.rewards.scoring import score_completions
from pipeline.rollouts import completion_rows, make_requests, tokenize_prompts
from pipeline.sampling import SampleRequest
from pipeline.table_io import read_table, write_table
from pipeline.tables import EVAL, PROMPTS
from stages import paths
from stages.runner import Result, run_stage


def evaluate(params: Params) -> Result:
    """Read the eval prompts and the policies, write `eval`: no rows off schedule."""
    policies = _due_policies(params)
    if not policies:
        write_table(EVAL.empty(), paths.EVAL, EVAL)
        nothing = {"is_scheduled": False, "n_prompts": 0, "n_completions": 0, "before": None, "after": None}
        return Result(f"not due: every {params.evaluate.every} iterations", nothing)
    # Here, since most iterations evaluate nothing, and it takes seconds to import torch.
    from pipeline.policy import load_tokenizer

    prompts = choose_eval_prompts(read_table(paths.PROMPTS, PROMPTS), params.evaluate.n_prompts)
    tokenizer = load_tokenizer(paths.BASE)
    # The seeds are the same in every iteration, so that two policies differ by what they learned, not by luck.
    requests = make_requests(
        prompts["prompt_id"].to_list(),
        tokenize_prompts(prompts, tokenizer, params.sampling.chat_template_kwargs),
        params.evaluate.n_completions,
        params.seed,
        "evaluate",
    )
    rows = pl.concat(
        [_evaluate_policy(name, folder, prompts, requests, tokenizer, params) for name, folder in policies.items()]
    )
    write_table(rows, paths.EVAL, EVAL)

    metrics: dict[str, Any] = {
        "is_scheduled": True,
        "n_prompts": prompts.height,
        "n_completions": rows.height // len(policies),
        "before": None,
        "after": None,
    }
    for name in policies:
        metrics[name] = evaluation_metrics(rows.filter(pl.col("policy") == name), params.evaluate.k)
    said = ", ".join(f"{name} {_describe(metrics[name])}" for name in policies)
    return Result(f"pass@1 on {prompts.height} held-out prompts: {said}", metrics)


def _due_policies(params: Params) -> dict[str, Path]:
    if params.parent is None:
        return {"before": paths.POLICY, "after": paths.NEXT_POLICY}
    is_due = (params.iteration + 1) % params.evaluate.every == 0  # so that the last of 10, 20, ... iterations is
    return {"after": paths.NEXT_POLICY} if is_due else {}


def _evaluate_policy(
    name: str, folder: Path, prompts: pl.DataFrame, requests: list[SampleRequest], tokenizer: Any, params: Params
) -> pl.DataFrame:
    from stages.sampling import sample_policy

    sampling: SamplingParams = params.sampling.model_copy(update={"temperature": params.evaluate.temperature})
    sampled, _ = sample_policy(folder, tokenizer, requests, sampling, f"evaluate_{name}")
    rows = completion_rows(prompts["prompt_id"].to_list(), requests, sampled.completions, tokenizer, params.iteration)
    scores = score_completions(rows, prompts, params.score)
    return (
        rows.join(scores.select("completion_id", "is_correct", "reward"), on="completion_id", how="left")
        .with_columns(policy=pl.lit(name, dtype=EVAL.schema["policy"]))
        .select(list(EVAL.schema))
    )


def _describe(metrics: dict[str, Any]) -> str:
    if metrics["pass_at_1"] is None:
        return "no verdicts"
    return f"{metrics['pass_at_1']:.3f} [{metrics['pass_at_1_low']:.3f}, {metrics['pass_at_1_high']:.3f}]"


if __name__ == "__main__":
    run_stage("evaluate", evaluate)
