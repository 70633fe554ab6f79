"""Problem files that nobody means: each is read, or refused with its name, in bounded memory."""

import json
import math
import os
import resource
import tracemalloc
import warnings
from datetime import date
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from e3rl.data import rows as reading
from e3rl.data.problems import load_problems

EXAMPLES = int(os.environ.get("EXAMPLES", "60"))  # the same ones each time
GOOD = b'{"prompt": "1+1=?", "answer": "2"}\n'
JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner),
    max_leaves=8,
)
RECORDS = st.dictionaries(st.sampled_from(["prompt", "answer", "id", "level", "prior"]), JSON)


def read(path: Path, content: bytes) -> list[str] | None:
    """Prompts of the rows that are not bad; None where the file is refused, which names it."""
    path.write_bytes(content)
    found = None
    for on_bad_row in ("raise", "skip"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found = [problem.prompt for problem in load_problems(path, on_bad_row=on_bad_row)]
            except ValueError as error:
                found = None
                if path.stem not in str(error):
                    raise AssertionError("an error that does not name the file") from error
    return found


def packed(table: pyarrow.Table, path: Path) -> bytes:
    pyarrow.parquet.write_table(table, path, compression="zstd")
    return path.read_bytes()


@settings(deadline=None, max_examples=EXAMPLES, derandomize=True)
@given(st.sampled_from(["jsonl", "json", "parquet"]), st.binary(max_size=60))
@example("jsonl", GOOD.decode().encode("utf-16"))
@example("jsonl", b"[" * 100_000)
@example("json", b'{"prompt": ' * 50_000)
@example("jsonl", b'{"prompt": "x", "answer": ' + b"9" * 5_000 + b"}")
@example("jsonl", b'{"prompt": "x", "answer": NaN}')
@example("json", b"PAR1")
@example("parquet", b"PAR1" * 3)
@example("jsonl", b"\x00" * 1000)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, kind: str, content: bytes) -> None:
    folder = tmp_path_factory.mktemp("any")
    alone = read(folder / f"mine.{kind}", content)
    assert alone is None or alone  # an empty set is refused
    between = read(folder / f"mine.{kind}", GOOD + content + b"\n" + GOOD)
    if kind == "parquet":
        assert between is None
    else:
        assert between is not None
        assert (between[0], between[-1]) == ("1+1=?", "1+1=?")


@settings(deadline=None, max_examples=EXAMPLES, derandomize=True)
@given(st.lists(RECORDS, max_size=5))
@example([{"prompt": "x", "answer": "1", "id": "a"}] * 2)
@example([{"prompt": "x", "answer": math.nan, "level": math.inf, "prior": -math.inf}])
def test_any_values_in_the_columns(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, object]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    text = "\n".join(json.dumps(record) for record in records)
    found = read(folder / "mine.jsonl", text.encode() + b"\n" + GOOD)
    assert found is not None
    assert found[-1] == "1+1=?"
    assert len(found) <= len(records) + 1
    try:
        content = packed(pyarrow.Table.from_pylist(records), folder / "made.parquet")
    except (pyarrow.ArrowException, OverflowError):
        return  # columns of mixed types, or of nothing, are none of Parquet's
    found = read(folder / "mine.parquet", content)
    assert found is None or 0 < len(found) <= len(records)


@settings(deadline=None, max_examples=EXAMPLES, derandomize=True)
@given(st.integers(0, 2000), st.binary(min_size=1, max_size=8), st.booleans())
@example(1462, b"\x80", False)
def test_damaged_parquet(
    tmp_path_factory: pytest.TempPathFactory, place: int, other: bytes, cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    rows = [{"prompt": f"{i}+1=?", "answer": str(i + 1)} for i in range(50)]
    whole = packed(pyarrow.Table.from_pylist(rows), folder / "made.parquet")
    place %= len(whole)
    damaged = whole[:place] if cut else whole[:place] + other + whole[place + len(other) :]
    found = read(folder / "mine.parquet", damaged)
    assert found is None or 0 < len(found) <= 50
    assert not (cut and found)  # the index is at the end of the file


def test_values_that_python_does_not_have_are_bad_rows(tmp_path: Path) -> None:
    days = pyarrow.array([0, 10**9], pyarrow.int32()).cast(pyarrow.date32())
    table = pyarrow.table({"prompt": ["a", "b"], "answer": ["1", "2"], "level": days})
    packed(table, tmp_path / "mine.parquet")
    found = reading.read_rows(tmp_path / "mine.parquet")
    assert found[0] == {"prompt": "a", "answer": "1", "level": date(1970, 1, 1)}
    assert isinstance(found[1], reading.Fault)


@pytest.mark.parametrize("rows_of_a_group", [2**17, 2**20])
def test_a_small_file_that_unpacks_to_much_is_refused_before_it_fills_the_memory(
    rows_of_a_group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MOST_BYTES", 2**26)
    path = tmp_path / "bomb.parquet"
    text = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 2**20, pyarrow.int32()), pyarrow.array(["x" * 1000])
    )
    table = pyarrow.table({"prompt": text, "answer": text})
    pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=rows_of_a_group)
    assert path.stat().st_size < 2**20  # and 2 GB unpacked
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"bomb.parquet takes more than 0.0625 GiB when unpacked"):
        load_problems(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB: a GiB
    assert len(reading.read_rows(path, limit=5)) == 5


def small_values(kind: str) -> pyarrow.Table:
    """Kilobytes of a file, megabytes of Arrow, and fifty times as much of Python."""
    rows = 2**19 if kind == "texts" else 2**12
    tall = {"prompt": pyarrow.array(["1+1=?"] * rows), "answer": pyarrow.array(["2"] * rows)}
    if kind == "lists of booleans":
        tall["level"] = pyarrow.array([[True] * 256] * rows)
    if kind == "fixed lists":
        tall["level"] = pyarrow.FixedSizeListArray.from_arrays(
            pyarrow.array([True] * (256 * rows)), 256
        )
    if kind == "structs":
        tall["level"] = pyarrow.array([{"a": [{"b": True}] * 64}] * rows)
    if kind == "maps":
        pairs = pyarrow.map_(pyarrow.string(), pyarrow.bool_())
        tall["level"] = pyarrow.array([[("k", True)] * 128] * rows, pairs)
    return pyarrow.table(tall)


@pytest.mark.parametrize("kind", ["texts", "lists of booleans", "fixed lists", "structs", "maps"])
def test_what_rows_take_as_python_objects_is_what_counts(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.parquet"
    table = small_values(kind)
    assert len(packed(table, path)) < 2**16
    tracemalloc.start()
    read_whole = reading.read_rows(path)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(read_whole) == table.num_rows
    monkeypatch.setattr(reading, "MOST_BYTES", taken // 2)
    with pytest.raises(ValueError, match=r"bomb.parquet takes more than"):
        reading.read_rows(path)
    monkeypatch.setattr(reading, "MOST_BYTES", 16 * taken)
    assert len(reading.read_rows(path)) == table.num_rows


@pytest.mark.parametrize("name", ["huge.jsonl", "huge.json"])
def test_a_text_file_beyond_the_limit_is_refused_before_it_is_read(
    name: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(reading.MOST_BYTES + 1)  # a hole: no room on the disk
    with pytest.raises(ValueError, match=rf"{name} takes more than 8 GiB"):
        load_problems(path)


def test_a_row_of_megabytes_is_read_or_refused_for_what_it_is(tmp_path: Path) -> None:
    text = "é" * 2**23
    (tmp_path / "mine.jsonl").write_text(
        json.dumps({"prompt": text, "answer": "1"}, ensure_ascii=False) + "\n" + GOOD.decode()
    )
    found = reading.read_rows(tmp_path / "mine.jsonl")
    assert found[0]["prompt"] == text
    assert found[1] == {"prompt": "1+1=?", "answer": "2"}
    assert list(reading.read_rows(tmp_path / "mine.jsonl", limit=1)) == [0]


def test_a_single_huge_text_is_refused_by_what_the_file_says_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bomb.parquet"
    table = pyarrow.table({"prompt": ["x" * 2**22], "answer": ["1"]})
    pyarrow.parquet.write_table(table, path, compression="zstd", use_dictionary=False)
    assert path.stat().st_size < 2**14
    assert len(reading.read_rows(path)) == 1
    monkeypatch.setattr(reading, "MOST_BYTES", 2**20)
    with pytest.raises(ValueError, match="when unpacked"):
        reading.read_rows(path)
