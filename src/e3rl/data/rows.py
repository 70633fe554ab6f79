"""Rows of problem files: jsonl, json and parquet, with a `Fault` for each that cannot be read."""

import codecs
import json
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from pathlib import Path

import pyarrow
import pyarrow.parquet

from e3rl.data.bad_rows import Fault

MOST_BYTES = 2**33  # of a file's rows as Python objects: five million rows of 1 KiB
VALUE_BYTES = 64  # of a Python value besides what it holds, with the reference to it
RECORD_BYTES = 256  # of a dictionary
BATCH_ROWS = 32, 1024  # at least and at most
Record = Mapping[str, object]
Rows = dict[int, Record | Fault]  # row number, counting from 0 -> the row, or what is wrong with it


def read_rows(path: Path, limit: int | None = None) -> Rows:
    """The rows of a file, or the first `limit` of them.

    A `.json` file holds one list of objects, or one object per line like a `.jsonl` file; one that
    begins like a list is one.

    Raises FileNotFoundError, also for a folder; ValueError for an unknown kind of file, one that
    cannot be read, or a limit below 1.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: give the number of rows to read, or null for all")
    if path.is_dir():
        raise FileNotFoundError(f"problem file {path} is a folder: give a file in it")
    if not path.is_file():
        raise FileNotFoundError(
            f"problem file {path.absolute()} does not exist: correct the path, or give an "
            "absolute one"
        )
    readers: dict[str, Callable[[Path, int | None], Rows]] = {
        ".jsonl": _read_jsonl,
        ".json": _read_json,
        ".parquet": _read_parquet,
    }
    if path.suffix not in readers:
        raise ValueError(
            f"{path}: unknown kind of file {path.suffix!r}, convert it to one of: "
            + ", ".join(readers)
        )
    if path.stat().st_size > MOST_BYTES:
        raise _too_large(path)
    return readers[path.suffix](path, limit)


def lookup(record: Record, column: str | None) -> object:
    """The value of a column; `a.b` is entry b of a struct, `a.0` the first one of a list."""
    if column is None or column in record:
        return None if column is None else record[column]
    value: object = record
    for key in column.split("."):
        if isinstance(value, list) and key.isdecimal():
            value = value[int(key)] if int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _read_json(path: Path, limit: int | None) -> Rows:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        with path.open("rb") as file:
            start = file.read(RECORD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()
        if start.startswith(b"["):
            raise ValueError(f"{path} is no complete list, write it again: {error}") from error
        return _read_jsonl(path, limit)
    if not isinstance(content, list):
        return _read_jsonl(path, limit)
    return {row: _as_record(item, "the entry") for row, item in enumerate(content[:limit])}


def _read_jsonl(path: Path, limit: int | None) -> Rows:
    # Files of bytes end a line at the newline alone; text would also do so at U+2028 inside it.
    with path.open("rb") as file:
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        filled = ((row, line) for row, line in enumerate(file) if line.strip())
        return {row: _read_line(line) for row, line in islice(filled, limit)}


def _read_line(line: bytes) -> Record | Fault:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        return Fault("not UTF-8", str(error), "save the file as UTF-8")
    try:
        record = json.loads(text)
    # ValueError: broken syntax, or an integer beyond Python's limit of digits.
    except (ValueError, RecursionError) as error:
        return Fault("broken JSON", str(error), "write one complete JSON object per line")
    return _as_record(record, "the line")


def _as_record(value: object, what: str) -> Record | Fault:
    if isinstance(value, dict):
        return value
    return Fault("wrong type", f"{what} is a {type(value).__name__}", "write one JSON object each")


def _read_parquet(path: Path, limit: int | None) -> Rows:
    """A file of kilobytes may hold terabytes: it is read by batches, up to `MOST_BYTES`."""
    rows: Rows = {}
    taken = 0
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_batch_rows(path, file.metadata)):
                table = _without_dictionaries(pyarrow.Table.from_batches([batch]))
                taken += table.num_rows * RECORD_BYTES + sum(map(_python_bytes, table.columns))
                if taken > MOST_BYTES:
                    raise _too_large(path)
                for record in _read_batch(table):
                    if limit is not None and len(rows) >= limit:
                        return rows
                    rows[len(rows)] = record
    # UnicodeDecodeError: the name of a column is no text.
    except (pyarrow.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a readable parquet file, write it again: {error}") from (
            error
        )
    return rows


def _batch_rows(path: Path, metadata: "pyarrow.parquet.FileMetaData") -> int:
    """Rows that may be unpacked at once.

    A text that all rows of a group share is in it once, and is no larger than the group.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    largest = max((group.total_byte_size for group in groups), default=0)
    if largest > MOST_BYTES:
        raise _too_large(path)
    fewest, most = BATCH_ROWS
    return min(most, max(fewest, MOST_BYTES // max(1, largest)))


def _without_dictionaries(table: "pyarrow.Table") -> "pyarrow.Table":
    """The same with every value in its place, so that the size of it all is known."""
    for number, column in enumerate(table.columns):
        if pyarrow.types.is_dictionary(column.type):
            plain = pyarrow.chunked_array([part.dictionary_decode() for part in column.chunks])
            table = table.set_column(number, table.field(number).with_type(plain.type), plain)
    return table


def _python_bytes(values: "pyarrow.Array | pyarrow.ChunkedArray") -> int:
    """About what Arrow's values take as Python objects, which is many times what they take there:
    a list of booleans 64 times."""
    if isinstance(values, pyarrow.ChunkedArray):
        return sum(map(_python_bytes, values.chunks))
    kind, own = values.type, VALUE_BYTES * len(values)
    if pyarrow.types.is_struct(kind):
        fields = (values.field(number) for number in range(kind.num_fields))
        return len(values) * RECORD_BYTES + sum(map(_python_bytes, fields))
    if pyarrow.types.is_map(kind):  # as pairs
        own += VALUE_BYTES * len(values.keys)
        return own + _python_bytes(values.keys) + _python_bytes(values.items)
    lists = (pyarrow.types.is_list, pyarrow.types.is_large_list, pyarrow.types.is_fixed_size_list)
    if any(is_of(kind) for is_of in lists):
        return own + _python_bytes(values.flatten())
    return own + int(values.nbytes)


def _too_large(path: Path) -> ValueError:
    return ValueError(
        f"{path} takes more than {MOST_BYTES / 2**30:g} GiB when unpacked: keep the columns that "
        "are needed, or fewer rows"
    )


def _read_batch(table: "pyarrow.Table") -> Iterable[Record | Fault]:
    try:
        records: list[Record | Fault] = table.to_pylist()
    except (ValueError, OverflowError):  # not UTF-8, or a date that Python does not have
        return [_read_slice(table.slice(row, 1)) for row in range(table.num_rows)]
    return records


def _read_slice(table: "pyarrow.Table") -> Record | Fault:
    try:
        record: Record = table.to_pylist()[0]
    except UnicodeDecodeError as error:
        return Fault("not UTF-8", str(error), "write the text column as UTF-8")
    except (ValueError, OverflowError) as error:
        return Fault("wrong type", str(error), "write text and numbers alone")
    return record
