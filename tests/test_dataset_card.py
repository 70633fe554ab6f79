"""The command that counts what problem sets hold and share."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from compositions import composed
from e3rl.config.composition import ConfigurationError
from e3rl.data.card import answer_kind
from e3rl.dataset_card import main, write_dataset_card
from e3rl.process.output import NoPlaceError


def card(tmp_path: Path, *overrides: str) -> str:
    return write_dataset_card(composed(f"out={tmp_path}", *overrides, root="dataset_card"))


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def table(text: str, number: int) -> dict[str, dict[str, str]]:
    """Rows of one Markdown table by their first cell."""
    lines = [part.splitlines() for part in text.split("\n\n") if part.startswith("|")][number]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}


def row(prompt: str, answer: str, source: str) -> dict[str, Any]:
    return {"prompt": prompt, "answer": answer, "source": source}


def test_rows_are_accounted_for_from_the_file_to_the_set(tmp_path: Path) -> None:
    train = write(
        tmp_path / "train.jsonl",
        [
            {"problem": "a?", "answer": "1"},
            {"problem": "A ?", "answer": "1"},
            {"problem": "b?", "answer": "1/2"},
            {"problem": "b?", "answer": "2"},
            {"problem": "c?", "answer": ""},
            {"problem": "d now", "answer": "x+1"},
        ],
    )
    test = write(
        tmp_path / "test.json",
        [row("e?", "5", "aime"), row("D  now.", "7", "amc"), row("f?", "8.0", "amc")],
    )
    with pytest.warns(UserWarning, match="dropped 1 of 6 rows"):
        text = card(
            tmp_path,
            *("+problems@sets.train=deepscaler", f"sets.train.path={train}"),
            *("+problems@sets.amc=e3_test", f"sets.amc.path={test}", "sets.amc.where.source=amc"),
        )
    assert text == (tmp_path / "dataset_card.md").read_text().strip()
    sets = table(text, 0)
    first = sets["train"]
    assert (first["rows"], first["selected"], first["left"]) == ("6", "6", "2")
    assert set(first["dropped"].split(", ")) == {
        "question with several answers: 2",
        "missing answer: 1",
        "repeated question: 1",
    }
    assert (first["answers"], first["repeated"]) == ("integer: 1, other: 1", "0")
    second = sets["amc"]
    assert (second["rows"], second["selected"], second["left"]) == ("3", "2", "2")
    assert (second["sources"], second["answers"]) == ("amc: 2", "integer: 1, number: 1")
    assert table(text, 1)["train"] == {
        "set": "train",
        "shares with": "amc",
        "questions": "1",
        "e.g.": "deepscaler:5 = test:1",
    }
    assert text.endswith("Every gold answer can be read by the verifier.")


def test_repeats_that_are_kept_and_over_long_prompts_are_counted(tmp_path: Path) -> None:
    rows = [row("1+1=?", "2", "s"), row("1+1=?", "3", "s"), row("1+1+1+1=?", "4", "s")]
    path = write(tmp_path / "mine.jsonl", rows)
    with pytest.warns(UserWarning, match="1 problems repeat"):
        text = card(
            tmp_path,
            *("+problems@sets.mine=file", f"sets.mine.path={path}"),
            *("policy=embedded", "max_prompt_tokens=8"),
        )
    mine = table(text, 0)["mine"]
    assert (mine["repeated"], mine["contradicted"]) == ("1", "1")
    assert (mine["tokens, median and most"], mine["over-long"]) == ("5, 9", "1")
    assert "No question is in two of the sets" in text


def test_without_a_set_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"add \+problems@sets\.train"):
        card(tmp_path)
    with pytest.raises(ConfigurationError, match=r"^foo is no setting: there are max"):
        card(tmp_path, "+foo=1")


def test_a_question_that_the_policy_cannot_spell_is_an_error_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "mine.jsonl", [row("What is 6 times 7?", "42", "s")])
    sets = ["+problems@sets.mine=file", f"sets.mine.path={path}", "policy=embedded"]
    monkeypatch.setattr(sys, "argv", ["dataset_card", *sets, f"hydra.run.dir={tmp_path}/out"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    told = capsys.readouterr().err
    assert "error: the tokenizer of " in told
    assert "in the prompt of 'mine:0'; take a policy that can read it" in told


@pytest.mark.parametrize(
    ("answer", "kind"),
    [("-3", "integer"), ("3/4", "number"), (r"5\text{ cm}", "number"), (r"\sqrt{2}", "other")],
)
def test_answers_are_integers_other_numbers_or_other(answer: str, kind: str) -> None:
    assert answer_kind(answer) == kind


def test_a_set_that_is_a_word_is_told_with_what_to_write(tmp_path: Path) -> None:
    words = r"^sets.a=carries: write \+problems@sets.a=carries$"
    with pytest.raises(ConfigurationError, match=words):
        card(tmp_path, "++sets.a=carries")


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(NoPlaceError, match=r"file is a file and no folder; choose another place$"):
        card(tmp_path / "file", "+problems@sets.a=carries")
