"""Every corruption that is planted is found, by the rule that is for it, and a sound iteration has none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from pipeline.errors import BadInput
from pipeline.integrity.verify import RULES, Problem, verify_checkout, verify_run
from pipeline.rewards.judging.questions import JudgeQuestion
from pipeline.table_io import write_text
from pipeline.tables import JUDGEMENTS
from pipeline.versioning.objects import object_path
from pipeline.versioning.repository import Repository
from tests.example_tables import with_value
from tests.integrity.whole import FOLDERS, IN_GIT, PIPELINE, SMALL, Whole
from tests.stage_runs import write_params
from tests.versioning.fabricated import add_object, import_run, init

FIRST = "0000/0000000000000000"
"""The first group, whose completions 0 and 2 are correct."""

Plant = Callable[[Whole], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """One that no test changes."""
    whole = Whole(tmp_path_factory.mktemp("sound"))
    whole.write()
    return whole


@pytest.fixture
def whole(sound: Whole, tmp_path: Path) -> Whole:
    """One of the test's own."""
    return Whole(Path(shutil.copytree(sound.root, tmp_path / "whole")))


def found(whole: Whole) -> list[str]:
    return [str(problem) for problem in verify_checkout(whole.root)]


def test_a_sound_iteration_has_no_problem(sound: Whole) -> None:
    assert found(sound) == []


OVERSAMPLED: dict[str, object] = {"rollout.oversample": 2.0, "filter.target_groups": 3}
"""Ten groups for five, of which 0, 1, 5 and 6 are mixed: 6 is surplus."""


def test_a_sound_iteration_with_surplus_has_no_problem(tmp_path: Path) -> None:
    whole = Whole(tmp_path)
    whole.write(OVERSAMPLED)
    assert found(whole) == []
    whole.edit("selection", lambda frame: frame.with_columns(prompt_id=pl.col("prompt_id").reverse()))
    said = " ".join(found(whole))
    assert "groups.parquet: group_id 0000/0000000000000000: its kept is true, and should be false" in said


def cell(table: str, row: int, column: str, value: object) -> Plant:
    return lambda whole: whole.edit(table, lambda frame: with_value(frame, row, column, value))


def drop_row(table: str, row: int = 1) -> Plant:
    return lambda whole: whole.edit(
        table, lambda frame: frame.with_row_index().filter(pl.col("index") != row).drop("index")
    )


def shift(table: str, column: str) -> Plant:
    return lambda whole: whole.edit(table, lambda frame: frame.with_columns(pl.col(column).shift(1, fill_value=0.0)))


def drop_group(*tables: str) -> Plant:
    def plant(whole: Whole) -> None:
        for table in tables:
            whole.edit(table, lambda frame: frame.filter(pl.col("group_id") != FIRST))

    return plant


def judgement(asked: str, was_asked: str | None = None) -> pl.DataFrame:
    """A row of `judgements`, whose id is of the question `asked`, and whose request is `was_asked`."""
    address = "http://localhost/v1"
    question = JudgeQuestion(address, {"messages": asked})
    request = json.dumps({"messages": was_asked or asked})
    row = {"judgement_id": question.key, "address": address, "request": request, "answer": "yes"}
    return pl.DataFrame([row], schema=JUDGEMENTS.schema)


def _with_an_edited_shadow(whole: Whole) -> None:
    """The prompts' own verifier is a shadow, too, and contradicts itself on completion 1."""
    write_params(whole.root, {**SMALL, "score.shadow_verifiers": ["math"]})
    shadow = pl.col("is_correct") | (pl.col("completion_id") == f"{FIRST}/1")
    whole.edit("rewards", lambda frame: frame.with_columns(is_correct_math=shadow))


PLANTS: dict[str, tuple[Plant, str]] = {
    "a reward is dropped": (
        drop_row("rewards"),
        rf"rewards.parquet: completion_id {FIRST}/1: it is missing, and the rollouts have it \[one_reward_each\]",
    ),
    "a reward is of no completion": (
        cell("rewards", 1, "completion_id", f"{FIRST}/1x"),
        rf"rewards.parquet: completion_id {FIRST}/1: it is missing.*{FIRST}/1x: it is there, and the rollouts don't",
    ),
    "an advantage is dropped": (
        drop_row("advantages"),
        rf"advantages.parquet: completion_id {FIRST}/1: it is missing.*\[one_advantage_each\]",
    ),
    "a completion is dropped": (
        drop_row("rollouts", 3),
        rf"group_id {FIRST}: it has 3 completions, the last numbered 2, and rollout.group_size is 4 "
        r"\[groups_are_whole\]",
    ),
    "a whole group is dropped everywhere": (
        drop_group("rollouts", "rewards", "advantages", "groups", "training_set"),
        r"prompt_id 0{16}: it is missing, and the selected prompts have it \[selected_is_rolled_out\]",
    ),
    "the column of rewards is shifted": (
        shift("rewards", "reward"),
        rf"completion_id {FIRST}/0: its reward is 0.0, and should be 1.0; .*and \d+ more \[reward_is_its_terms\]",
    ),
    "a reward is null without a reason": (
        cell("rewards", 19, "score_error", None),
        r"completion_id 0000/0{15}4/3: its reward is null, and score_error does not say why \[null_has_a_reason\]",
    ),
    "a term is another than params say": (
        lambda whole: whole.edit("rewards", lambda frame: frame.rename({"reward_correct": "reward_length"})),
        r"columns reward terms: there are reward_length, and score.terms has reward_correct \[reward_is_its_terms\]",
    ),
    "a shadow verifier is missing": (
        lambda whole: write_params(whole.root, {**SMALL, "score.shadow_verifiers": ["code"]}),
        r"columns shadow verdicts: there are none, and score.shadow_verifiers has is_correct_code "
        r"\[shadows_are_verdicts\]",
    ),
    "a shadow verdict is edited": (
        _with_an_edited_shadow,
        rf"completion_id {FIRST}/1: its own verifier math says another thing as a shadow \[shadows_are_verdicts\]",
    ),
    "a judge was asked something else": (
        lambda whole: whole.edit("judgements", lambda frame: pl.concat([frame, judgement("Is it long?", "m")])),
        r"judgements.parquet: judgement_id [0-9a-f]{64}: it is the answer to another question, [0-9a-f]{64} "
        r"\[judgements_have_their_keys\]",
    ),
    "a reward is of another group": (
        cell("rewards", 1, "group_id", "0000/0000000000000001"),
        rf"completion_id {FIRST}/1: its group_id is 0000/0{{15}}1, and should be {FIRST} \[rewards_have_the_ids\]",
    ),
    "an advantage is edited": (
        # Group 0 has rewards 1, 0, 1, 0: mean 1/2, standard deviation sqrt(4 x 1/4 / 3) = 0.57735.
        cell("advantages", 0, "advantage", 0.9),
        rf"completion_id {FIRST}/0: its advantage is 0.9, and should be 0.866\d+ \[advantages_follow\]",
    ),
    "the reward beside an advantage is edited": (
        cell("advantages", 0, "reward", 0.5),
        rf"completion_id {FIRST}/0: its reward is 0.5, and should be 1.0 \[advantages_follow\]",
    ),
    "advantages are of another method": (
        lambda whole: write_params(whole.root, {**SMALL, "normalize.scale": "none"}),
        rf"completion_id {FIRST}/0: its advantage is 0.866\d+, and should be 0.5; .*\[advantages_follow\]",
    ),
    "a dropped group is kept": (
        cell("groups", 2, "kept", True),
        r"groups.parquet: group_id 0000/0{15}2: its kept is true, and should be false \[groups_follow\]",
    ),
    "a count of a group is edited": (
        cell("groups", 0, "n_correct", 3),
        rf"group_id {FIRST}: its n_correct is 3, and should be 2 \[groups_follow\]",
    ),
    "a trained completion is dropped": (
        drop_row("training_set"),
        rf"training_set.parquet: completion_id {FIRST}/1: it is missing \[training_set_follows\]",
    ),
    "an advantage is flipped on the way to training": (
        cell("training_set", 0, "advantage", -0.866),
        rf"completion_id {FIRST}/0: its advantage is -0.866, and should be 0.866\d+ \[training_set_follows\]",
    ),
    "tokens are others in training": (
        cell("training_set", 1, "completion_token_ids", [9, 9]),
        rf"completion_id {FIRST}/1: its completion_token_ids are other ones \[training_set_follows\]",
    ),
    "a prompt's statistics are edited": (
        cell("next_prompt_stats", 0, "n_correct", 4),
        r"prompt_id 0{16}: its n_correct is 4, and should be 2 \[statistics_follow\]",
    ),
    "a seed is another": (
        cell("rollouts", 2, "seed", 7),
        rf"completion_id {FIRST}/2: its seed is 7, .*\[seeds_are_hashes\]",
    ),
    "a seed is not that of the shard": (
        lambda whole: whole.edit("rollouts", _with_seeds_of_shards, seed_scope="shard"),
        rf"completion_id {FIRST}/2: its seed is 8, and that of its group is 7 \[seeds_are_hashes\]",
    ),
    "an id does not fit": (
        cell("rollouts", 0, "completion_id", "0000/0"),
        rf"completion_id 0000/0: it has group_id {FIRST}, prompt_id 0{{16}} and index 0 \[ids_fit\]",
    ),
    "rows are of another iteration": (
        lambda whole: whole.edit("rewards", lambda frame: frame.with_columns(iteration=pl.lit(7, pl.UInt32))),
        rf"rewards.parquet: key {FIRST}/0: its iteration is 7, and params.yaml says 0; .*\[iteration\]",
    ),
    "a completion is longer than the limit": (
        lambda whole: whole.edit("rollouts", _with_twenty_tokens),
        rf"completion_id {FIRST}/0: it has 20 tokens and finish_reason stop, and the limit is 16 \[ends_fit_lengths\]",
    ),
    "a completion is said to be cut": (
        cell("rollouts", 0, "finish_reason", "length"),
        rf"completion_id {FIRST}/0: it has 1 tokens and finish_reason length, and the limit is 16 \[ends_fit_lengths\]",
    ),
    "a probability is above 1": (
        cell("rollouts", 0, "sampling_logprobs", [0.5]),
        rf"completion_id {FIRST}/0: a log-probability of its sampling_logprobs is 0.5 \[logprobs_are_negative\]",
    ),
    "a held-out prompt is trained on": (
        cell("selection", 0, "prompt_id", f"{10_000:016x}"),
        rf"selection.parquet: prompt_id {10_000:016x}: it is no train prompt of data/prompts.parquet \[prompts_exist\]",
    ),
    "the selection has a gap": (
        drop_row("selection"),
        r"position 1: it is missing, and the 5 places of select.n_prompts have it \[selection_is_whole\]",
    ),
    "a train prompt is evaluated": (
        cell("eval", 0, "prompt_id", f"{0:016x}"),
        r"eval.parquet: prompt_id 0{16}: it is no eval prompt of data/prompts.parquet \[held_out_is_held_out\]",
    ),
    "half of the evaluation is gone": (
        drop_row("eval"),
        r"policy after: it has 1 completions, the last of a prompt numbered 0; params.yaml says 2 and 0 "
        r"\[evaluation_is_whole\]",
    ),
    "a held-out completion has another place": (
        cell("eval", 0, "completion_index", 9),
        r"policy after: it has 2 completions, the last of a prompt numbered 9; params.yaml says 2 and 0 "
        r"\[evaluation_is_whole\]",
    ),
    "the trainer's probability is above 1": (
        cell("token_logprobs", 0, "old_logprobs", [0.7]),
        rf"completion_id {FIRST}/0: a log-probability of its old_logprobs or ref_logprobs is 0.7\d* "
        r"\[trained_logprobs_are_negative\]",
    ),
    "the headline is a list": (
        lambda whole: write_text("[]", whole.root / "data/metrics/report.json"),
        r"data/metrics/report.json: it is no JSON object",
    ),
    "a trained completion has no record": (
        drop_row("token_logprobs"),
        rf"token_logprobs.parquet: completion_id {FIRST}/1: it is missing, .*\[trained_is_on_record\]",
    ),
    "a log-probability is missing": (
        lambda whole: whole.edit("token_logprobs", _with_one_logprob_less),
        rf"completion_id {FIRST}/1: it has 1 old log-probabilities for 2 tokens \[one_logprob_a_token\]",
    ),
    "a step saw another number": (
        cell("train_steps", 0, "n_completions", 5),
        r"train_steps.parquet: step 0: its n_completions is 5, and should be 8 \[steps_saw_what_they_say\]",
    ),
    "a step is missing": (
        lambda whole: whole.edit("train_steps", _with_a_gap),
        r"step 2: the step before it is 0 \[steps_follow\]",
    ),
    "the headline is edited": (
        lambda whole: _edit_text(whole, "data/metrics/report.json", '"n_completions": 20', '"n_completions": 21'),
        r"data/metrics/report.json: n_completions is 21, and should be 20",
    ),
    "the history is edited": (
        lambda whole: _edit_text(whole, "data/history.csv", ",20,", ",22,"),
        r"data/history.csv: n_completions is 22, and should be 20",
    ),
    "the policy is another": (
        lambda whole: write_text("other", whole.root / "data/policy/model.safetensors"),
        r"rollouts.parquet: they are from the policy [0-9a-f]{16}, and the fingerprint of data/policy is [0-9a-f]{16}",
    ),
    "the temperature is another": (
        lambda whole: write_params(whole.root, {**SMALL, "sampling.temperature": 0.5}),
        r"rollouts.parquet: temperature 1.0: params.yaml says 0.5 \[temperature_is_noted\]",
    ),
}


def _with_twenty_tokens(rollouts: pl.DataFrame) -> pl.DataFrame:
    longer = with_value(rollouts, 0, "completion_token_ids", list(range(20)))
    return with_value(longer, 0, "sampling_logprobs", [-0.5] * 20)


def _with_seeds_of_shards(rollouts: pl.DataFrame) -> pl.DataFrame:
    return with_value(rollouts.with_columns(seed=pl.lit(7, pl.Int64)), 2, "seed", 8)


def _with_one_logprob_less(token_logprobs: pl.DataFrame) -> pl.DataFrame:
    return token_logprobs.with_columns(
        pl.when(pl.col("completion_id") == f"{FIRST}/1")
        .then(pl.col(name).list.head(1))
        .otherwise(pl.col(name))
        .alias(name)
        for name in ("old_logprobs", "ref_logprobs")
    )


def _with_a_gap(train_steps: pl.DataFrame) -> pl.DataFrame:
    return pl.concat([train_steps, train_steps.with_columns(step=pl.lit(2, pl.UInt32))])


def _edit_text(whole: Whole, path: str, old: str, new: str) -> None:
    file = whole.root / path
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize("name", PLANTS)
def test_what_is_planted_is_found(name: str, whole: Whole) -> None:
    plant, message = PLANTS[name]
    plant(whole)
    whole.lock()  # as one who knows DVC would: the hashes fit
    problems = found(whole)
    assert any(pl.Series([problem]).str.contains(message).item() for problem in problems), problems


def test_sound_verdicts_of_shadows_and_judges_are_no_problem(whole: Whole) -> None:
    write_params(whole.root, {**SMALL, "score.shadow_verifiers": ["math"]})
    whole.edit("rewards", lambda frame: frame.with_columns(is_correct_math=pl.col("is_correct")))
    whole.edit("judgements", lambda frame: pl.concat([frame, judgement("Is it short?")]))
    whole.lock()
    assert found(whole) == []


def test_every_rule_has_a_plant() -> None:
    assert {rule.name for rule in RULES} == {
        message.rpartition(r"\[")[2].removesuffix(r"\]") for _, message in PLANTS.values() if message.endswith(r"\]")
    }


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_file_that_was_edited_is_told_by_its_hash(whole: Whole) -> None:
    whole.edit("rewards", lambda frame: with_value(frame, 0, "extracted_answer", "8"))
    (problem,) = found(whole)
    assert problem.startswith("data/rewards.parquet: its md5 is ")
    assert "dvc.lock has" in problem


def test_swapped_files_are_told_by_their_hashes(whole: Whole) -> None:
    policy, following = (whole.root / folder / "model.safetensors" for folder in ("data/policy", "data/next_policy"))
    content = policy.read_text()
    policy.write_text(following.read_text())
    following.write_text(content)
    assert [problem.partition(":")[0] for problem in found(whole)] == [
        "data/next_policy",
        "data/policy",
        "data/rollouts.parquet",  # whose policy is another now
    ]


@pytest.mark.parametrize("artifact", ["data/rewards.parquet", "data/next_policy", *IN_GIT])
def test_a_missing_file_is_named(whole: Whole, artifact: str) -> None:
    path = whole.root / artifact
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert f"{artifact}: it is missing" in found(whole)


def test_a_file_more_in_a_folder_is_found(whole: Whole) -> None:
    (whole.root / "data/next_policy/extra.bin").write_text("x")
    (problem,) = found(whole)
    assert problem.startswith("data/next_policy: its md5 is ")


def test_a_flipped_bit_is_found_though_the_hash_fits(whole: Whole) -> None:
    file = whole.root / "data/rollouts.parquet"
    sound = file.read_bytes()
    for place in (300, 1500, 2500):  # of some 5,000 bytes, of which the footer takes the last half
        content = bytearray(sound)
        content[place] ^= 1
        file.write_bytes(content)
        whole.lock()
        assert any(problem.startswith("data/rollouts.parquet: ") for problem in found(whole)), place


def test_a_table_that_breaks_its_own_rules_is_named(whole: Whole) -> None:
    path = whole.root / "data/rewards.parquet"
    frame = pl.read_parquet(path)
    pl.concat([frame, frame.tail(1)]).write_parquet(path, metadata={"schema_version": "1"})
    whole.lock()
    assert any("rewards.parquet: row 19: completion_id is the same in two rows" in problem for problem in found(whole))
    frame.drop("is_correct").write_parquet(path, metadata={"schema_version": "1"})
    whole.lock()
    assert any("rewards.parquet: column 'is_correct' is missing" in problem for problem in found(whole))
    frame.write_parquet(path, metadata={"schema_version": "7"})
    whole.lock()
    assert any("rewards.parquet: its schema_version is '7'" in problem for problem in found(whole))


def test_a_stage_that_never_ran_is_named(whole: Whole) -> None:
    (whole.root / "dvc.yaml").write_text(PIPELINE + "  late: {cmd: late, outs: [data/late.parquet]}\n")
    assert found(whole) == ["dvc.lock: it has no data/late.parquet, which dvc.yaml declares"]


def test_a_stage_that_read_another_file_is_named(whole: Whole) -> None:
    text = (whole.root / "dvc.lock").read_text()
    md5 = whole.output("data/rewards.parquet").md5
    place = text.rindex(md5)  # in the stage `report`, which is the last
    (whole.root / "dvc.lock").write_text(text[:place] + "ab" * 16 + text[place + 32 :])
    assert found(whole) == [f"dvc.lock: stage report read data/rewards.parquet {'ab' * 16}, and {md5} is what was made"]


def test_params_that_were_edited_since_are_named(whole: Whole) -> None:
    """The learning rate leaves no trace in the tables; DVC notes what each stage read."""
    text = (whole.root / "dvc.lock").read_text()
    noted = "    params:\n      params.yaml:\n        training.learning_rate: 0.5\n"
    (whole.root / "dvc.lock").write_text(text.replace("  report:\n", f"  report:\n{noted}"))
    rate = whole.params.training.learning_rate
    assert found(whole) == [f"params.yaml: training.learning_rate is {rate}, and stage report had 0.5"]


def test_what_makes_no_iteration_is_an_error(tmp_path: Path, whole: Whole) -> None:
    (whole.root / "dvc.lock").unlink()
    with pytest.raises(BadInput, match=r"dvc\.lock of this checkout: there is no such file\. Run `dvc repro`"):
        verify_checkout(whole.root)
    with pytest.raises(BadInput, match=r"params\.yaml"):
        verify_checkout(tmp_path)


# Runs -----------------------------------------------------------------------------------------------------------------


class WholeRun:
    """The run `demo` of two iterations in a repository of its own, with `plant` before the second is recorded."""

    def __init__(self, root: Path, plant: Plant = lambda _: None, **changes: object) -> None:
        self.root = root
        init(root)
        first = self._make("first", {}, None)
        (commit,) = import_run(root, "demo", [first.lock_text()], pipeline=PIPELINE, texts=[self._texts(first)])
        own = {"iteration": 1, "parent": commit, **changes}
        second = self._make("second", own, first)
        plant(second)
        import_run(
            root,
            "demo",
            [second.lock_text()],
            start="demo/0000",
            first=1,
            pipeline=PIPELINE,
            texts=[self._texts(second)],
        )
        self.second = second
        self._store(first)
        self._store(second)

    def problems(self, name: str = "demo") -> list[str]:
        return [str(each) for _, problems in verify_run(Repository(self.root), name) for each in problems]

    def object_of(self, artifact: str) -> Path:
        return object_path(self.root / ".dvc/cache", self.second.output(artifact).md5)

    def _make(self, name: str, changes: dict[str, object], before: Whole | None) -> Whole:
        whole = Whole(self.root / "data" / name)
        whole.root.mkdir(parents=True)
        whole.write(changes, before.read("next_prompt_stats") if before else None)
        return whole

    def _texts(self, whole: Whole) -> dict[str, str]:
        return {path: (whole.root / path).read_text() for path in ("params.yaml", *IN_GIT)}

    def _store(self, whole: Whole) -> None:
        cache_dir = self.root / ".dvc/cache"
        for folder in FOLDERS:
            add_object(cache_dir, whole.folder_list(folder), ".dir")
        for file in (whole.root / "data").rglob("*"):
            if file.is_file():
                add_object(cache_dir, file.read_bytes())


@pytest.fixture(scope="module")
def sound_run(tmp_path_factory: pytest.TempPathFactory) -> WholeRun:
    return WholeRun(tmp_path_factory.mktemp("run"))


def test_a_sound_run_has_no_problem(sound_run: WholeRun) -> None:
    assert sound_run.problems() == []
    assert [iteration.name for iteration, _ in verify_run(Repository(sound_run.root), "demo/1")] == ["demo/0001"]
    with pytest.raises(BadInput, match="run demo has no such iteration"):
        sound_run.problems("demo/0007")


def test_a_wrong_parent_is_found(tmp_path: Path) -> None:
    problems = WholeRun(tmp_path, parent="ab" * 20).problems()
    assert problems[0].startswith(
        f"demo/0001 params.yaml: parent is {'ab' * 20}, and the iteration before is demo/0000, "
    )
    assert len(problems) == 1


def test_a_number_that_is_not_the_tags_is_found(tmp_path: Path) -> None:
    problems = WholeRun(tmp_path, iteration=2).problems()
    assert "demo/0001 params.yaml: iteration is 2, and the tag says 1" in problems
    assert any("one is missing between" in problem for problem in problems)


@pytest.mark.parametrize("artifact", ["data/policy", "data/trainer_state"])
def test_an_iteration_that_began_with_something_else_is_found(tmp_path: Path, artifact: str) -> None:
    def plant(whole: Whole) -> None:
        (whole.root / artifact / "model.safetensors").write_text("from elsewhere")

    problems = WholeRun(tmp_path, plant).problems()
    assert any(
        f"demo/0001 {artifact}: its md5 is " in each and "the iteration before ended with" in each for each in problems
    )


def test_a_damaged_object_of_the_cache_is_found(tmp_path: Path) -> None:
    run = WholeRun(tmp_path)
    file = run.object_of("data/advantages.parquet")
    file.chmod(0o644)
    file.write_bytes(file.read_bytes() + b"\0")
    assert any("demo/0001 data/advantages.parquet: its md5 is " in each for each in run.problems())
    file.unlink()
    assert run.problems() == ["demo/0001 data/advantages.parquet: it is missing"]


def test_a_pruned_trainer_state_is_no_problem(tmp_path: Path) -> None:
    run = WholeRun(tmp_path)
    run.object_of("data/next_trainer_state").unlink()
    assert run.problems() == []
    run.object_of("data/next_policy").unlink()
    assert run.problems() == ["demo/0001 data/next_policy: it is missing"]


def test_a_problem_is_one_line() -> None:
    assert (
        str(Problem("demo/0003", "data/rewards.parquet", "it is missing"))
        == "demo/0003 data/rewards.parquet: it is missing"
    )
