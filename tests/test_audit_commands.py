"""`rollbook audit`, `sql`, `grep`, `show` and `verify` on an iteration in data/, and on a run."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner, Result

from pipeline.audit.registry import QUESTIONS
from pipeline.cli import app
from tests.example_tables import with_value
from tests.integrity.whole import Whole
from tests.versioning.project import ENVIRONMENT

FIRST = "0000/0000000000000000"
HOSTILE = "\x1b[2J[bold]It is 1\x07\u202e\n" + "very " * 50 + "long"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """An iteration whose first completion is hostile."""
    whole = Whole(tmp_path_factory.mktemp("made"))
    whole.write()
    whole.edit("rollouts", lambda frame: with_value(frame, 0, "completion_text", HOSTILE))
    whole.lock()
    return whole


@pytest.fixture
def here(made: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Whole:
    whole = Whole(Path(shutil.copytree(made.root, tmp_path / "here")))
    monkeypatch.chdir(whole.root)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return whole


def rollbook(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def cells(output: str) -> list[list[str]]:
    """The rows of a table."""
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in output.splitlines() if line.startswith("│")
    ]


def test_without_a_name_the_questions_are_listed(here: Whole) -> None:
    listed = dict(cells(rollbook("audit").output))
    assert listed == {question.name: question.asks for question in QUESTIONS.values()}


def test_a_table_has_what_fits_and_says_what_it_leaves_out(here: Whole) -> None:
    output = rollbook("audit", "highest", "--limit", "2").output
    assert output.splitlines()[0] == "Which completions scored highest, and do they deserve it? data"
    assert output.splitlines()[-1] == ("2 of 17 rows, sorted by reward ↓, reward_above_group ↓; --limit 0 shows all.")
    # In the second group one of four is right: 3/4 above the mean. The ids of group and prompt are in the completion's.
    assert cells(output)[0] == ["0000/0000000000000001/0", "1", "0.75", "yes", "7", "2", "It is 2"]
    assert "16 of 17" not in rollbook("audit", "highest", "--limit", "0").output


def test_what_acts_on_a_terminal_is_shown_by_its_number(here: Whole) -> None:
    (row,) = cells(rollbook("audit", "highest", "--where", f"completion_id = '{FIRST}/0'").output)
    # The first line becomes 4 + 3 + 6 + 7 + 4 + 6 = 30 characters; with ⏎ and the 254 of the second that makes 285.
    assert row[-1] == r"\x1b[2J[bold]It is 1\x07\u202e …225…  very very very very very long"
    assert "\x1b" not in rollbook("show", f"{FIRST}/0").output


def test_rows_for_other_programs_are_all_and_whole(here: Whole) -> None:
    rows = json.loads(rollbook("audit", "highest", "--json").output)
    assert len(rows) == 17
    assert list(rows[0])[:4] == ["iteration", "prompt_id", "group_id", "completion_id"]
    assert HOSTILE in [row["completion_text"] for row in rows]
    of_csv = pl.read_csv(
        io.BytesIO(rollbook("audit", "highest", "--csv").stdout_bytes), schema_overrides={"prompt_id": pl.String}
    )
    assert of_csv["completion_text"].to_list() == [row["completion_text"] for row in rows]
    of_parquet = pl.read_parquet(io.BytesIO(rollbook("audit", "highest", "--parquet").stdout_bytes))
    assert of_parquet["completion_id"].to_list() == [row["completion_id"] for row in rows]
    assert len(json.loads(rollbook("audit", "highest", "--json", "--limit", "3").output)) == 3


def test_sql_over_all_tables(here: Whole) -> None:
    query = (
        "select outcome, count(*) as n from groups join rewards using (run, group_id) group by outcome order by outcome"
    )
    output = rollbook("sql", query).output
    assert cells(output) == [["all_correct", "4"], ["all_wrong", "4"], ["mixed", "8"], ["unscorable", "4"]]
    assert output.endswith("4 rows.\n")
    cut = rollbook("sql", "select completion_id from rollouts join prompts using (prompt_id) cross join eval").output
    assert cut.endswith("20 of 40 rows; --csv or --json gives all.\n")
    lists = rollbook("sql", "select steps from token_logprobs limit 1", "--csv").output
    assert lists == "steps\n[0]\n"


def test_grep_filters_on_any_column(here: Whole) -> None:
    output = rollbook("grep", r"is \d\b", "--where", "outcome = 'mixed' and advantage > 0").output
    # Completions 0 and 2 of the first group say 1, the first of the second says 2; of the hostile one a part is shown.
    assert [row[0] for row in cells(output)] == [f"{FIRST}/0", f"{FIRST}/2", "0000/0000000000000001/0"]
    assert "2J[bold]It is 1" in output
    assert rollbook("grep", "nowhere[/b]").output == "Which completions match nowhere[/b]? data\nNo row answers this.\n"


def test_a_life_has_everything_of_a_completion(here: Whole) -> None:
    output = rollbook("show", "0000/0000000000000001/0", "--tokens").output
    for line in (
        "Prompt 0000000000000001, made up",
        "  │ user: What is 1 + 1?",
        "  answer: 2, judged by math",
        "Group 0000/0000000000000001",
        # One of four is right: the mean is 1/4, and the standard deviation sqrt((9 + 3) / 16 / 3) is 1/2.
        "  kept: mixed outcomes; 1 of 4 correct, 0 cut off; reward 0.25 on average, standard deviation 0.5",
        "  │ It is 2",
        "  2 tokens, 7 characters, ended by itself",
        "  reward 1 (correct 1); correct; extracted 7",
        "  advantage +1.500; trained on in step 0",
    ):
        assert line in output.splitlines(), line
    assert cells(output)[0] == ["0", "0", "-0.5", "-0.51", "-0.51", "-0.01"]
    assert "0000/0000000000000001/1" not in output


def test_a_life_of_a_group_or_a_prompt_has_all_its_completions(here: Whole) -> None:
    group = rollbook("show", "0000/0000000000000004").output
    assert [f"Completion 0000/0000000000000004/{n}" in group for n in range(5)] == [True] * 4 + [False]
    assert "dropped: fewer than two scorable completions" in group
    assert "reward – (correct –); no verdict; nothing extracted; the verifier took too long" in group
    assert "advantage –; not trained on" in group
    assert rollbook("show", "0000000000000004").output == group
    assert "It was not rolled out in these iterations." in rollbook("show", f"{10_000:016x}").output


def test_a_life_that_has_not_come_to_its_end(here: Whole) -> None:
    """After each stage, what it made is there, and what is to come is said to be."""
    completion = "0000/0000000000000001/0"
    for name, said in (
        ("token_logprobs", "  advantage +1.500; in the training set, and in no step so far"),
        ("training_set", "  advantage +1.500; not trained on"),
        ("groups", "  advantage +1.500; not filtered yet"),
        ("advantages", "  advantage –; not filtered yet"),
        ("rewards", "  not scored yet"),
    ):
        Path(f"data/{name}.parquet").unlink()
        output = rollbook("show", completion, "--tokens").output
        assert said in output.splitlines(), name
        assert cells(output)[0][:4] == ["0", "0", "-0.5", "–"]
    assert "data/rewards.parquet: there is no such file" in rollbook("grep", "It is 2$", code=1).output


def test_here_is_a_name(here: Whole) -> None:
    subprocess.run(["git", "init", "--quiet", "."], check=True)
    assert rollbook("verify", ".").output == rollbook("verify").output
    assert rollbook("show", FIRST, "--run", ".").output == rollbook("show", FIRST).output


def test_a_sound_iteration_is_verified_and_an_edit_named(here: Whole) -> None:
    subprocess.run(["git", "init", "--quiet", "."], check=True)
    assert rollbook("verify").output == "data: 1 iteration, no problem.\n"
    here.edit("advantages", lambda frame: with_value(frame, 0, "advantage", 0.9))
    here.lock()
    result = rollbook("verify", code=1)
    assert f"data/advantages.parquet: completion_id {FIRST}/0: its advantage is 0.9, and should be " in result.stdout
    assert "2 problems in 1 of 1 iteration." in result.stderr  # what is trained on is another now, too


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("audit", "lenght"), 1, r"audit lenght: there is no such question\. Did you mean length\."),
        (("audit", "highest", "--json", "--csv"), 2, "choose one of --json, --csv"),
        (("audit", "highest", "--run", "x", "--iterations", "3-5"), 2, r"'3-5' is not A\.\.B"),
        (("audit", "highest", "--where", "reward >"), 1, r"--where 'reward >': it can't be read"),
        (("audit", "highest", "--where", "reward"), 1, "--where: it is Float64, not true or false"),
        (("audit", "highest", "--where", "reward > 'a'"), 1, "--where: cannot compare string with numeric type"),
        (("audit", "flips"), 1, "audit flips: it compares the same completions in two runs"),
        (("grep", "("), 1, r"grep '\(': it is no regular expression \(unclosed group\)"),
        (("grep", r"\w{300}{30}"), 1, r"it is no regular expression \(.*size limit"),
        (("grep", "a", "--where", "colour = 'red'"), 1, r"column colour: no completion has it\. There are advantage, "),
        (("sql", " DELETE from rewards"), 1, "sql: delete is no question, and iterations are not to be changed"),
        (("sql", "select"), 1, "sql: sql parser error"),
        (("sql", "select * from nothing"), 1, r"sql: relation 'nothing' was not found\. The tables are prompts"),
        (("show", "0000/0000000000000000/9"), 1, "there is no such completion in data"),
        (("show", "////"), 1, "it is none of a completion, a group or a prompt"),
    ],
)
def test_rubbish_is_answered_in_one_line(here: Whole, arguments: tuple[str, ...], code: int, message: str) -> None:
    result = rollbook(*arguments, code=code)
    assert re.search(message, " ".join(result.output.split())), result.output


def test_a_damaged_table_is_an_error_of_one_line(here: Whole) -> None:
    file = Path("data/rollouts.parquet")
    content = bytearray(file.read_bytes())
    content[4:1200] = bytes(1196)  # pages, while the footer stays
    file.write_bytes(content)
    for arguments in (
        ("audit", "repetition"),
        ("grep", "7"),
        ("show", f"{FIRST}/0"),
        ("sql", "select * from rollouts"),
    ):
        assert re.search("error: (the tables|sql): ", rollbook(*arguments, code=1).output), arguments


def test_a_folder_without_an_iteration_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "data: it has no iteration. `dvc repro` makes one; " in rollbook("audit", "highest", code=1).output
    assert "--iterations: it chooses among" in rollbook("audit", "highest", "--iterations", "1..2", code=1).output
