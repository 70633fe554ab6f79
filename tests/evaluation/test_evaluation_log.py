"""The log of an evaluation: exactly once over kills, and never two settings in one folder."""

from pathlib import Path
from typing import Any

import pytest

from e3rl.evaluation.log import (
    COMPLETIONS,
    PROBLEMS,
    EvaluationLog,
    OtherSettingsError,
    UnusableLogError,
)
from e3rl.ledger.ledger import read_rows

SETTINGS = {"model": {"weights": "ab"}, "evaluations": {"t1": {"n": 4, "top_p": 1.0}}}


def rows(folder: Path, name: str) -> list[dict[str, Any]]:
    return read_rows(folder / name)


def add(log: EvaluationLog, problem: str, n: int = 2) -> None:
    texts = [{"problem_id": problem, "completion": f"{problem}{i}"} for i in range(n)]
    log.append({"problem_id": problem, "evaluations": []}, texts)


def test_finished_problems_are_known_when_it_is_opened_again(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, SETTINGS) as log:
        assert log.finished == set()
        add(log, "a")
        add(log, "b", n=3)
        assert log.finished == {"a", "b"}
    with EvaluationLog(tmp_path, SETTINGS) as log:
        assert log.finished == {"a", "b"}
        assert [row["completions"] for row in log.rows] == [2, 5]
        add(log, "c")
    assert [row["problem_id"] for row in rows(tmp_path, PROBLEMS)[1:]] == ["a", "b", "c"]
    assert [row["completion"] for row in rows(tmp_path, COMPLETIONS)] == [
        *("a0", "a1", "b0", "b1", "b2", "c0", "c1")
    ]


def test_what_a_kill_left_of_a_problem_is_set_aside(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, SETTINGS) as log:
        add(log, "a")
        log._completions.append({"completion": "b0"})
    with (tmp_path / COMPLETIONS).open("a") as file:
        file.write('{"completion":"b1')  # torn
    with EvaluationLog(tmp_path, SETTINGS) as log:
        assert log.finished == {"a"}
        add(log, "b")
    assert [r["completion"] for r in rows(tmp_path, COMPLETIONS)] == ["a0", "a1", "b0", "b1"]


def test_a_torn_row_of_a_problem_does_not_count(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, SETTINGS) as log:
        add(log, "a")
        add(log, "b")
    whole = (tmp_path / PROBLEMS).read_bytes()
    (tmp_path / PROBLEMS).write_bytes(whole[:-7])
    with EvaluationLog(tmp_path, SETTINGS) as log:
        assert log.finished == {"a"}
        add(log, "b")
    assert (tmp_path / PROBLEMS).read_bytes() == whole
    assert len(rows(tmp_path, COMPLETIONS)) == 4


def test_a_kill_within_the_first_row_leaves_an_empty_log(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, SETTINGS):
        pass
    (tmp_path / PROBLEMS).write_bytes((tmp_path / PROBLEMS).read_bytes()[:9])
    with EvaluationLog(tmp_path, SETTINGS | {"max_new_tokens": 9}) as log:
        assert log.rows == []
    assert rows(tmp_path, PROBLEMS) == [{"settings": SETTINGS | {"max_new_tokens": 9}}]


def test_every_setting_that_differs_is_named(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, SETTINGS) as log:
        add(log, "a")
    other = {
        "model": {"weights": "cd"},
        "evaluations": {"t1": {"n": 8, "top_p": 1.0}, "greedy": {"n": 1}},
    }
    with pytest.raises(OtherSettingsError) as caught:
        EvaluationLog(tmp_path, other)
    message = str(caught.value)
    assert f"{tmp_path} holds an evaluation with other settings" in message
    for line in (
        "model.weights: 'ab' there, 'cd' now",
        "evaluations.t1.n: 4 there, 8 now",
        "evaluations.greedy: None there, {'n': 1} now",
        "choose another folder by out=",
    ):
        assert line in message
    assert "top_p" not in message
    assert rows(tmp_path, PROBLEMS)[0] == {"settings": SETTINGS}


def test_a_second_writer_is_refused_while_the_first_one_writes(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, SETTINGS) as log:
        add(log, "a")
        with pytest.raises(UnusableLogError, match="another process is writing an evaluation into"):
            EvaluationLog(tmp_path, SETTINGS)
        add(log, "b")
    assert len(rows(tmp_path, COMPLETIONS)) == 4
    with pytest.raises(OtherSettingsError):
        EvaluationLog(tmp_path, {})
    with EvaluationLog(tmp_path, SETTINGS) as log:  # a refused one has left nothing locked
        assert log.finished == {"a", "b"}


def test_a_problem_that_is_there_twice_is_not_counted_twice(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, SETTINGS) as log:
        add(log, "a")
        add(log, "b")
    lines = (tmp_path / PROBLEMS).read_text().splitlines(keepends=True)
    (tmp_path / PROBLEMS).write_text("".join([*lines, lines[1]]))
    before = [(tmp_path / name).read_bytes() for name in (PROBLEMS, COMPLETIONS)]
    with pytest.raises(UnusableLogError, match=r"has 1 problems more than once, such as 'a'"):
        EvaluationLog(tmp_path, SETTINGS)
    assert [(tmp_path / name).read_bytes() for name in (PROBLEMS, COMPLETIONS)] == before


def test_settings_are_compared_as_json_holds_them(tmp_path: Path) -> None:
    with EvaluationLog(tmp_path, {"ks": (1, 2)}):
        pass
    with EvaluationLog(tmp_path, {"ks": [1, 2]}) as log:
        assert log.rows == []
