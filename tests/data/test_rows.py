import json

import pytest

from e3rl.data.bad_rows import Fault
from e3rl.data.rows import lookup, read_rows

ROWS = [{"a": 1}, {"a": 2}, {"a": 3}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(ROWS),
        json.dumps(ROWS, indent=2),
        "\n".join(map(json.dumps, ROWS)),
        "\ufeff" + json.dumps(ROWS),
    ],
)
def test_a_json_file_holds_a_list_or_one_object_per_line(tmp_path, text):
    (tmp_path / "a.json").write_text(text, encoding="utf-8")
    assert read_rows(tmp_path / "a.json") == dict(enumerate(ROWS))
    assert read_rows(tmp_path / "a.json", limit=2) == {0: {"a": 1}, 1: {"a": 2}}


def test_an_entry_that_is_no_object_is_a_fault(tmp_path):
    (tmp_path / "a.json").write_text('[{"a": 1}, 2]')
    assert read_rows(tmp_path / "a.json")[1] == Fault(
        "wrong type", "the entry is a int", "write one JSON object each"
    )
    (tmp_path / "b.json").write_text('{"a": 1}')
    assert read_rows(tmp_path / "b.json") == {0: {"a": 1}}
    (tmp_path / "c.json").write_text('{"a": ')
    assert read_rows(tmp_path / "c.json")[0].reason == "broken JSON"


def test_a_list_that_was_cut_short_is_one_mistake_and_not_one_a_line(tmp_path):
    (tmp_path / "a.json").write_text('\n[{"a": 1},\n{"a": 2},\n')
    with pytest.raises(ValueError, match=r"a\.json is no complete list, write it again: Expecting"):
        read_rows(tmp_path / "a.json")


def test_a_folder_is_no_problem_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder: give a file in it"):
        read_rows(tmp_path)


def test_a_limit_counts_rows_and_not_blank_lines(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n{"a": 3}\n')
    assert read_rows(tmp_path / "a.jsonl", limit=2) == {0: {"a": 1}, 2: {"a": 2}}


def test_parquet_files_are_read_up_to_the_limit(tmp_path):
    import pandas as pd

    pd.DataFrame(ROWS).to_parquet(tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet") == dict(enumerate(ROWS))
    assert read_rows(tmp_path / "a.parquet", limit=1) == {0: {"a": 1}}


def test_columns_lead_into_structs_and_lists():
    record = {"a": {"b": [{"c": 5}]}, "a.x": 7}
    assert lookup(record, "a.b.0.c") == 5
    assert lookup(record, "a.x") == 7
    assert lookup(record, "a.b.1.c") is None
    assert lookup(record, "a.b.c") is None
    assert lookup(record, None) is None
