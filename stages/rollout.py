"""Stage `rollout`: a group of completions per selected prompt, with the log-probability of every token."""

from __future__ import annotations

from dataclasses import asdict

from pipeline.params import Params
from pipeline.policy import load_tokenizer
from pipeline.rollouts import completion_rows, make_requests, rollout_metrics, tokenize_prompts
from pipeline.sampling.origin import rollouts_metadata
from pipeline.table_io import read_table, write_table
from pipeline.tables import PROMPTS, ROLLOUTS, SELECTION
from stages import paths
from stages.inputs import selected_prompts
from stages.runner import Result, run_stage
from stages.sampling import sample_policy


def rollout(params: Params) -> Result:
    """Read `prompts`, `selection` and the policy; write `rollouts`."""
    selection = read_table(paths.SELECTION, SELECTION)
    prompts = selected_prompts(selection, read_table(paths.PROMPTS, PROMPTS), params.iteration)
    tokenizer = load_tokenizer(paths.BASE)
    prompt_ids = prompts["prompt_id"].to_list()
    token_ids = tokenize_prompts(prompts, tokenizer, params.sampling.chat_template_kwargs)
    requests = make_requests(prompt_ids, token_ids, params.rollout.group_size, params.seed, params.iteration)
    sampled, origin = sample_policy(paths.POLICY, tokenizer, requests, params.sampling, "rollout")

    rows = completion_rows(prompt_ids, requests, sampled.completions, tokenizer, params.iteration)
    write_table(rows, paths.ROLLOUTS, ROLLOUTS, rollouts_metadata(origin, params.sampling))

    metrics = rollout_metrics(rows, sampled.seconds) | asdict(origin)
    line = f"{rows.height} completions of {len(prompt_ids)} prompts, {metrics['n_completion_tokens']} tokens"
    kept = f", {sampled.n_kept} completions of an earlier try" if sampled.n_kept else ""
    return Result(f"{line}, {metrics['tokens_per_second']:.0f} tokens/s{kept}", metrics)


if __name__ == "__main__":
    run_stage("rollout", rollout)
