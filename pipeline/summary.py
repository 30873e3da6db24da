"""An iteration in a few facts, in the words that the terminal and the report share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.metrics import Metrics, finite

MISSING = "–"


@dataclass(frozen=True)
class Fact:
    """A number with its name, and what a reader needs in order not to misread it."""

    label: str
    value: str
    note: str = ""


def facts(metrics: Metrics) -> list[Fact]:
    """What a person wants to know of an iteration first.

    The metrics of `report`, which repeat the row of history, give what the parent measured.
    """
    return [*_data_facts(metrics), *_training_facts(metrics), *_evaluation_facts(metrics)]


def decimal(value: Any) -> str:
    """A number to four significant digits, with thousands separated.

    >>> decimal(0.123456), decimal(1234567), decimal(None), decimal(float("nan"))
    ('0.1235', '1,234,567', '–', 'not finite')
    """
    number = finite(value)
    if number is None:
        return MISSING if value is None else "not finite"
    return f"{number:,}" if isinstance(number, int) else f"{number:,.4g}"


def percent(value: Any) -> str:
    """A fraction as a percentage.

    >>> percent(0.171875), percent(1), percent(None)
    ('17.2%', '100.0%', '–')
    """
    return decimal(value) if finite(value) is None else f"{100 * value:.1f}%"


def signed(value: Any) -> str:
    """A number with its sign, to three decimal places.

    >>> signed(0.5), signed(-1.22474), signed(0.0), signed(None)
    ('+0.500', '-1.225', '0', '–')
    """
    number = finite(value)
    if number is None:
        return decimal(value)
    return f"{number:+.3f}" if round(number, 3) else "0"


def interval(measured: Any) -> str:
    """The 95% interval of the pass@1 in `measured`, the metrics of one evaluated policy."""
    return f"{percent(measured['pass_at_1_low'])} to {percent(measured['pass_at_1_high'])}"


def dropped(metrics: Metrics) -> str:
    """Why groups were dropped: counts and reasons, the most frequent first.

    >>> dropped({"filter": {"dropped_reasons": {"all correct": 2, "all wrong": 5}}})
    '5 dropped (all wrong), 2 dropped (all correct)'
    """
    reasons: dict[str, int] = metrics["filter"]["dropped_reasons"]
    ordered = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} dropped ({reason})" for reason, count in ordered) or "none dropped"


def why_no_step(metrics: Metrics) -> str:
    """In words, why the numbers of the update are not there; empty where a step was taken."""
    if metrics["update"]["n_steps"]:
        return ""
    if metrics["filter"]["n_kept"]:
        return "all kept completions are cut off, and training.mask_truncated leaves these out"
    return "no group is kept, so no optimizer step was taken"


def why_no_evaluation(metrics: Metrics, policy: str) -> str:
    """In words, why `policy` ("before" or "after") was not evaluated; empty where it was."""
    if metrics["evaluate"][policy] is not None:
        return ""
    if not metrics["evaluate"]["is_scheduled"]:
        return "no evaluation is due at this iteration (evaluate.every)"
    return "the iteration that it starts from has none" if policy == "before" else "not measured"


def _data_facts(metrics: Metrics) -> list[Fact]:
    rollout, score, kept = metrics["rollout"], metrics["score"], metrics["filter"]
    shown = f"of {decimal(metrics['prompts']['n_train'])} to train on"
    length, cut_off = decimal(rollout["completion_tokens_mean"]), percent(rollout["truncated_fraction"])
    verdict = "of the completions with a verdict" if score["pass_rate"] is not None else "no completion has a verdict"
    return [
        Fact("Prompts", decimal(metrics["select"]["n_prompts"]), shown),
        Fact("Completions", decimal(rollout["n_completions"]), f"{length} tokens on average, {cut_off} cut off"),
        Fact("Pass rate", percent(score["pass_rate"]), verdict),
        Fact("Reward", decimal(score["reward_mean"]), _reward_note(score)),
        Fact("Groups kept", f"{decimal(kept['n_kept'])} of {decimal(kept['n_groups'])}", dropped(metrics)),
    ]


def _reward_note(score: Any) -> str:
    terms = ", ".join(f"{name} {decimal(mean)}" for name, mean in score["term_means"].items())
    n_without = score["n_completions"] - score["n_scored"]
    return f"mean; {terms}" + (f"; {n_without:,} can't be scored" if n_without else "")


def _training_facts(metrics: Metrics) -> list[Fact]:
    update = metrics["update"]
    missing = why_no_step(metrics)
    no_reference = "no reference is loaded" if update["kl"] is None else "to the reference, nats per token"
    single = "a single step: every ratio is 1" if update["n_steps"] == 1 else f"over {update['n_steps']} steps"
    return [
        Fact("KL", decimal(update["kl"]), missing or no_reference),
        Fact("Clip fraction", percent(update["clip_fraction"]), missing or single),
        Fact("Entropy", decimal(update["entropy"]), missing or "of the policy, nats per token"),
        Fact("Gradient norm", decimal(update["grad_norm"]), missing or "before clipping"),
    ]


def _evaluation_facts(metrics: Metrics) -> list[Fact]:
    return [_pass_at_1(metrics, policy) for policy in ("before", "after")]


def _pass_at_1(metrics: Metrics, policy: str) -> Fact:
    measured = metrics["evaluate"][policy]
    label = f"Held-out pass@1 {policy}"
    if measured is None:
        inherited = metrics["report"].get("eval_pass_at_1_before") if policy == "before" else None
        if inherited is None:
            return Fact(label, MISSING, why_no_evaluation(metrics, policy))
        return Fact(label, percent(inherited), "measured after the update of the parent")
    if measured["pass_at_1"] is None:
        return Fact(label, MISSING, "no completion has a verdict")
    note = f"95% interval {interval(measured)}, {decimal(metrics['evaluate']['n_prompts'])} prompts"
    return Fact(label, percent(measured["pass_at_1"]), note)
