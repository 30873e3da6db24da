"""A verdict for every completion, by the verifier that its prompt names, and by those that only look on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from pipeline.params import ScoreParams
from pipeline.rewards.code.verifier import CodeVerifier
from pipeline.rewards.completion import Verdict
from pipeline.rewards.verifier import Prompt, Question, Verifier, unjudged, wrong
from pipeline.rewards.verifiers.json_answer import JsonAnswerVerifier
from pipeline.rewards.verifiers.math import MathVerifier
from pipeline.rewards.verifiers.reasoning_gym import ReasoningGymVerifier
from pipeline.rewards.verifiers.tool_calls import ToolCallsVerifier
from pipeline.rewards.workers import Call, Outcome, Workers, WorkersOnDemand

NO_VERIFIER = "none"


def make_verifiers(params: ScoreParams) -> dict[str, Verifier]:
    """Each verifier by the name that prompts give it; `none`, which judges nothing, is not among them."""
    return {
        "math": MathVerifier(params.math),
        "reasoning_gym": ReasoningGymVerifier(params.reasoning_gym),
        "code": CodeVerifier(params.code),
        "json_answer": JsonAnswerVerifier(params.json_answer),
        "tool_calls": ToolCallsVerifier(params.tool_calls),
    }


def verify(
    texts: Sequence[str],
    prompts: Sequence[Prompt],
    verifiers: Mapping[str, Verifier],
    workers: WorkersOnDemand,
    on_progress: Callable[[int], None],
) -> list[Verdict]:
    """The verdict on each of `texts` by the verifier of its prompt.

    `on_progress` gets, again and again, how many more completions have their verdict.
    """
    judged = [judge_at_once(text, prompt, verifiers) for text, prompt in zip(texts, prompts, strict=True)]
    return answer_questions(judged, _workers_for(judged, workers), on_progress)


def verify_in_shadow(
    name: str,
    texts: Sequence[str],
    prompts: Sequence[Prompt],
    verdicts: Sequence[Verdict],
    verifiers: Mapping[str, Verifier],
    workers: WorkersOnDemand,
) -> list[Verdict]:
    """What the verifier `name` would say of each of `texts`; where it is the prompt's own, that is in `verdicts`."""
    rows = zip(texts, prompts, verdicts, strict=True)
    judged = [
        verdict if prompt.verifier == name else verifiers[name].judge(text, prompt) for text, prompt, verdict in rows
    ]
    return answer_questions(judged, _workers_for(judged, workers), lambda _n: None)


def judge_at_once(text: str, prompt: Prompt, verifiers: Mapping[str, Verifier]) -> Verdict | Question:
    """The verdict on a completion, or the question that it leaves to a worker."""
    if prompt.verifier == NO_VERIFIER:
        return unjudged(None, None)
    return verifiers[prompt.verifier].judge(text, prompt)


def answer_questions(
    judged: Sequence[Verdict | Question], workers: Workers | None, on_progress: Callable[[int], None]
) -> list[Verdict]:
    """`judged` with a verdict for each question, equal ones asked once.

    `on_progress` gets, again and again, how many more completions have their verdict.
    """
    questions = [each for each in judged if isinstance(each, Question)]
    on_progress(len(judged) - len(questions))
    outcomes = _outcomes([question.call for question in questions], workers, on_progress)
    late = [each.reference_check for each in questions if outcomes[each.call].failure == "timeout"]
    checks = _outcomes(late, workers, lambda _n: None)
    return [
        _verdict(each, outcomes[each.call], checks.get(each.reference_check)) if isinstance(each, Question) else each
        for each in judged
    ]


def _workers_for(judged: Sequence[Verdict | Question], workers: WorkersOnDemand) -> Workers | None:
    warm_up = [each.warm_up for each in judged if isinstance(each, Question)]
    return workers.start(warm_up) if warm_up else None


def _outcomes(
    calls: Sequence[Call], workers: Workers | None, on_progress: Callable[[int], None]
) -> dict[Call, Outcome]:
    if not calls:
        return {}
    assert workers is not None
    counts = Counter(calls)
    distinct = list(counts)
    outcomes = workers.run(distinct, lambda index: on_progress(counts[distinct[index]]))
    return dict(zip(distinct, outcomes, strict=True))


def _verdict(question: Question, outcome: Outcome, check: Outcome | None) -> Verdict:
    answer = question.extracted_answer
    if outcome.failure == "timeout":
        assert check is not None
        if check.failure or check.value:
            return unjudged(answer, check.value or f"the prompt's reference alone fails: {check.reason}")
        return wrong(answer, outcome.reason)
    if outcome.failure:
        return unjudged(answer, outcome.reason)
    score, error = outcome.value
    return unjudged(answer, error) if score is None else Verdict(score == 1, score, answer, error)
