"""Ledgers of finished runs, packed: every row as it was, in a fraction of the space."""

import lzma
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from e3rl.ledger.archive import ledger_folders
from e3rl.ledger.ledger import Ledger, find_ledger, pack, read_rows

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
ROWS = [
    {"kind": "validation", "rollout_step": 0, "val/t1/pass@1": 1.0, "rank": [None, None]},
    {"rollout_step": 0, "kind": "train", "n": [8, 4], "loss": None, "tokens": 5751.0},
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


@pytest.mark.end_to_end
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(st.text(), values, max_size=5), max_size=6))
def test_rows_come_back_as_plain_ledgers_give_them(
    path: Path, rows: list[dict[str, object]]
) -> None:
    path.with_name("metrics.jsonl.xz").unlink(missing_ok=True)
    with Ledger(path) as ledger:
        for row in rows:
            ledger.append(row)
    plain, written = read_rows(path), path.read_bytes()
    pack(path, rows)
    assert repr(read_rows(path)) == repr(plain)  # types, key order, nulls, absent keys
    assert lzma.decompress(path.with_name("metrics.jsonl.xz").read_bytes()) == written


def test_a_packed_ledger_replaces_the_plain_one_and_is_found_by_its_name(path: Path) -> None:
    assert find_ledger(path) is None
    with Ledger(path) as ledger:
        ledger.append(ROWS[0])
    assert find_ledger(path) == path
    pack(path, [*read_rows(path), ROWS[1]])
    assert [file.name for file in path.parent.iterdir()] == ["metrics.jsonl.xz"]
    assert find_ledger(path) == path.with_name("metrics.jsonl.xz")
    assert read_rows(path) == ROWS


def test_a_new_ledger_does_not_hide_a_packed_one(path: Path) -> None:
    pack(path, ROWS)
    with pytest.raises(ValueError, match=r"metrics\.jsonl\.xz is the finished ledger"):
        Ledger(path)
    assert read_rows(path) == ROWS


def test_rows_are_added_by_packing_all_of_them_again(path: Path) -> None:
    pack(path, ROWS)
    pack(path, [*read_rows(path), {"rollout_step": 1}])
    assert read_rows(path) == [*ROWS, {"rollout_step": 1}]


def test_what_no_ledger_takes_leaves_the_packed_one_as_it_was(path: Path) -> None:
    pack(path, ROWS)
    with pytest.raises(TypeError, match=r"row\['x'\] is a set"):
        pack(path, [{"x": {1, 2}}])
    assert read_rows(path) == ROWS


def test_folders_with_a_ledger_are_found_once_in_either_form(tmp_path: Path) -> None:
    both = ("a/x/metrics.jsonl", "a/x/metrics.jsonl.xz")
    for name in ("metrics.jsonl", *both, "b/metrics.jsonl.xz", "c/metrics.jsonl.superseded"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert ledger_folders(tmp_path, "metrics.jsonl") == [
        tmp_path,
        tmp_path / "a" / "x",
        tmp_path / "b",
    ]


@pytest.mark.parametrize("content", [b"no xz", lzma.compress(b'{"a":1}\n')[:-8], b""])
def test_damaged_packed_ledgers_are_named(path: Path, content: bytes) -> None:
    path.with_name("metrics.jsonl.xz").write_bytes(content)
    with pytest.raises(ValueError, match=r"metrics\.jsonl\.xz is damaged .*: restore it"):
        read_rows(path)


def test_a_ledger_in_neither_form_is_missing_under_its_name(path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl'"):
        read_rows(path)
