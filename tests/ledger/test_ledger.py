import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e3rl.ledger.ledger import Ledger, export, read_rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def superseded(path: Path) -> Path:
    return path.with_name(path.name + ".superseded")


def write(path: Path, count: int) -> Ledger:
    ledger = Ledger(path)
    for step in range(count):
        ledger.append({"rollout_step": step})
    return ledger


def test_rows_are_on_disk_before_the_ledger_is_closed(path: Path) -> None:
    ledger = Ledger(path)
    ledger.append({"kind": "train", "rollout/accuracy": 0.5})
    assert path.read_text() == '{"kind":"train","rollout/accuracy":0.5}\n'
    assert ledger.rows == 1


def test_rows_survive_sigkill(path: Path) -> None:
    script = (
        "import os, sys, signal; from e3rl.ledger.ledger import Ledger\n"
        "ledger = Ledger(sys.argv[1])\n"
        "[ledger.append({'rollout_step': i}) for i in range(3)]\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [row["rollout_step"] for row in read_rows(path)] == [0, 1, 2]


def test_importing_the_ledger_needs_neither_torch_nor_pandas() -> None:
    script = (
        "import sys, e3rl.ledger.ledger\n"
        "print({'torch', 'lightning', 'pandas'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "set()"


def test_non_finite_numbers_become_null(path: Path) -> None:
    Ledger(path).append(
        {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": np.float32("nan")}, "e": -np.inf}
    )
    assert read_rows(path) == [{"a": None, "b": [None, 1.5], "c": {"d": None}, "e": None}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float64(0.25), 0.25),
        (np.int64(7), 7),
        (np.bool_(True), True),
        (np.array(3), 3),
        (torch.tensor(2.5), 2.5),
        (torch.tensor(4), 4),
        ((1, 2), [1, 2]),
        (None, None),
    ],
)
def test_scalars_of_numpy_and_torch_keep_their_kind(
    path: Path, value: object, expected: object
) -> None:
    Ledger(path).append({"value": value})
    read = read_rows(path)[0]["value"]
    assert read == expected
    assert type(read) is type(expected)


@pytest.mark.parametrize(
    "value", [np.zeros(2), torch.zeros(1), {1, 2}, object(), b"bytes", Path("x")]
)
def test_other_values_are_refused_by_name_and_write_nothing(path: Path, value: object) -> None:
    ledger = Ledger(path)
    with pytest.raises(TypeError, match=r"row\['outer'\]\[0\] is a "):
        ledger.append({"outer": [value]})
    assert path.read_bytes() == b""
    assert ledger.rows == 0


def test_keys_must_be_strings(path: Path) -> None:
    with pytest.raises(TypeError, match="key 3"):
        Ledger(path).append({"table": {3: "x"}})


def test_line_separators_inside_texts_do_not_split_rows(path: Path) -> None:
    text = "a\nb\u2028c\x85d\ud800"
    with Ledger(path) as ledger:
        ledger.append({"text": text})
        ledger.append({"text": "é"})
    assert [row["text"] for row in read_rows(path)] == [text, "é"]
    assert Ledger(path).rows == 2


def test_reopening_counts_the_rows_and_goes_on(path: Path) -> None:
    write(path, 2).close()
    ledger = Ledger(path)
    assert ledger.rows == 2
    ledger.append({"rollout_step": 2})
    assert [row["rollout_step"] for row in read_rows(path)] == [0, 1, 2]


def test_rewind_moves_later_rows_aside_and_appends_to_what_is_there(path: Path) -> None:
    ledger = write(path, 5)
    ledger.rewind(3)
    assert ledger.rows == 3
    ledger.append({"rollout_step": "again"})
    ledger.rewind(2)
    ledger.append({"rollout_step": "once more"})
    assert [row["rollout_step"] for row in read_rows(path)] == [0, 1, "once more"]
    assert [row["rollout_step"] for row in read_rows(superseded(path))] == [3, 4, 2, "again"]
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, superseded(path).name]


@pytest.mark.parametrize("rows", [5, 9])
def test_rewind_to_the_end_or_beyond_changes_nothing(path: Path, rows: int) -> None:
    ledger = write(path, 5)
    ledger.rewind(rows)
    assert ledger.rows == 5
    assert not superseded(path).exists()


def test_rewind_to_nothing_and_below_nothing(path: Path) -> None:
    ledger = write(path, 2)
    with pytest.raises(ValueError, match="rows=-1"):
        ledger.rewind(-1)
    ledger.rewind(0)
    assert path.read_bytes() == b""
    assert len(read_rows(superseded(path))) == 2


def test_torn_last_line_is_set_aside_on_opening(path: Path) -> None:
    write(path, 2).close()
    with path.open("ab") as file:
        file.write(b'{"rollout_step": 2, "poli')
    assert len(read_rows(path)) == 2
    ledger = Ledger(path)
    assert ledger.rows == 2
    ledger.append({"rollout_step": 2})
    assert [row["rollout_step"] for row in read_rows(path)] == [0, 1, 2]
    assert superseded(path).read_bytes() == b'{"rollout_step": 2, "poli\n'


def test_kill_before_the_replacement_loses_no_row(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = write(path, 4)

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        ledger.rewind(1)
    monkeypatch.undo()
    assert len(read_rows(path)) == 4
    Ledger(path).rewind(1)
    assert [row["rollout_step"] for row in read_rows(path)] == [0]
    assert {row["rollout_step"] for row in read_rows(superseded(path))} == {1, 2, 3}


def test_half_written_row_is_taken_back(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = write(path, 1)
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real_write(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="is the disk full"):
        ledger.append({"rollout_step": 1})
    monkeypatch.undo()
    ledger.append({"rollout_step": 1})
    assert [row["rollout_step"] for row in read_rows(path)] == [0, 1]


def test_closed_ledger_refuses_and_closes_twice(path: Path) -> None:
    ledger = write(path, 1)
    ledger.close()
    ledger.close()
    with pytest.raises(ValueError, match="is closed"):
        ledger.append({})
    with pytest.raises(ValueError, match="is closed"):
        ledger.rewind(0)


@pytest.mark.parametrize(("line", "message"), [(b"{broken", "not valid JSON"), (b"[1]", "a list")])
def test_broken_line_in_the_middle_is_named(path: Path, line: bytes, message: str) -> None:
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"a": 2}\n')
    with pytest.raises(ValueError, match=rf"metrics\.jsonl:2 is .*{message}"):
        read_rows(path)


def test_missing_file_is_an_error(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_rows(path)


numbers = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@settings(
    deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.lists(st.dictionaries(st.text(), numbers | st.lists(numbers)), max_size=6),
    keep=st.integers(0, 8),
    torn=st.integers(0, 30),
)
def test_kept_and_superseded_rows_are_all_rows(
    tmp_path: Path, rows: list[dict[str, object]], keep: int, torn: int
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.unlink(missing_ok=True)
    superseded(path).unlink(missing_ok=True)
    with Ledger(path) as ledger:
        for row in rows:
            ledger.append(row)
    whole = read_rows(path)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - torn] if torn < len(data) else data)
    left = len(read_rows(path))
    with Ledger(path) as ledger:
        assert ledger.rows == left
        ledger.rewind(keep)
        ledger.append({"end": True})
    assert read_rows(path) == [*whole[: min(keep, left)], {"end": True}]


def test_export_writes_the_union_of_columns_with_types(tmp_path: Path) -> None:
    with Ledger(tmp_path / "metrics.jsonl") as ledger:
        ledger.append({"policy/loss": 0.5, "kind": "train", "rollout_step": 0, "epoch": 0})
        ledger.append({"kind": "validation", "rollout_step": 1, "epoch": 0, "val/t1/pass@1": 0.25})
        ledger.append({"kind": "train", "rollout_step": 1, "epoch": 0, "policy/skipped": None})
    paths = export(tmp_path)
    assert [p.name for p in paths] == ["metrics.csv", "metrics.parquet"]
    columns = ["kind", "rollout_step", "epoch", "policy/loss", "val/t1/pass@1", "policy/skipped"]
    for frame in (pd.read_csv(paths[0]), pd.read_parquet(paths[1])):
        assert list(frame.columns) == columns
        assert frame["rollout_step"].tolist() == [0, 1, 1]
        assert frame["policy/loss"].tolist()[0] == 0.5
        assert frame["policy/loss"].isna().tolist() == [False, True, True]
        assert frame["policy/skipped"].dtype == "float64"
    assert export(tmp_path) == paths


def test_export_is_read_by_anything_that_reads_strict_json(tmp_path: Path) -> None:
    Ledger(tmp_path / "metrics.jsonl").append({"kind": "train", "x": float("nan")})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=refuse) == {"kind": "train", "x": None}


def test_a_ledger_cut_at_any_byte_keeps_its_whole_rows_and_loses_no_byte(tmp_path: Path) -> None:
    whole = b"".join(b'{"n":%d,"text":"\xc3\xa9"}\n' % n for n in range(4))
    for cut in range(len(whole) + 1):
        path = tmp_path / f"{cut}.jsonl"
        path.write_bytes(whole[:cut])
        with Ledger(path) as ledger:
            assert ledger.rows == whole[:cut].count(b"\n")
            ledger.append({"n": 9})
        rows = [row["n"] for row in read_rows(path)]
        assert rows == [*range(whole[:cut].count(b"\n")), 9]
        aside = path.with_name(f"{cut}.jsonl.superseded")
        torn = whole[:cut].rpartition(b"\n")[2]
        assert (aside.read_bytes() if aside.exists() else b"") == (torn + b"\n" if torn else b"")
