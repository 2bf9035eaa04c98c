"""Small files of Parquet and Arrow that are gigabytes of text, and what is no file."""

from __future__ import annotations

import importlib
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import ConfigError
from drumline_trainer.data.records import arrow_batches, files
from drumline_trainer.data.records.arrow_batches import bounded_batches
from drumline_trainer.data.records.files import read_records, uncompressed_bytes

pa: Any = importlib.import_module("pyarrow")  # without types
pq: Any = importlib.import_module("pyarrow.parquet")
MOST = 1000
LONG = "a" * 400


def repeated(values: Any, rows: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), values)


def write_parquet(table: Any, path: Path) -> None:
    pq.write_table(table, path, compression="zstd")


def write_delta(table: Any, path: Path) -> None:
    """Each value as what it shares with the one before."""
    plain = table.cast(pa.schema([("text", pa.string())]))
    pq.write_table(plain, path, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")


def write_stream(table: Any, path: Path) -> None:
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)


def write_file(table: Any, path: Path) -> None:
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "a.parquet": write_parquet,
    "delta.parquet": write_delta,
    "stream.arrow": write_stream,
    "file.arrow": write_file,
}


@pytest.mark.parametrize("name", WRITERS)
def test_rows_of_a_dictionary_become_objects_a_few_at_a_time(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MAX_RECORD_BYTES", MOST)
    table = pa.table({"text": repeated(pa.array([LONG]), 300)})
    WRITERS[name](table, tmp_path / name)
    batches = files._parquet if name.endswith("parquet") else files._arrow
    read = list(batches(tmp_path / name))
    assert sum(batch.num_rows for batch in read) == 300
    assert max(batch.num_rows for batch in read) * len(LONG) <= MOST
    stored = list(read_records(tmp_path / name, offset=298))
    assert [each.record for each in stored] == [{"text": LONG}] * 2
    assert stored[-1].after == 300


@pytest.mark.parametrize("name", WRITERS)
def test_a_row_that_is_too_long_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_MAX_RECORD_BYTES", MOST)
    table = pa.table({"text": repeated(pa.array(["a" * 1001]), 3)})
    WRITERS[name](table, tmp_path / name)
    with pytest.raises(ConfigError, match=rf"{name} has 10\d\d bytes; a record has 1000"):
        list(read_records(tmp_path / name, offset=0))


TEXTS = pa.array([LONG])
ONE_ROW = {
    "a list of one text": pa.ListArray.from_arrays([0, 9], repeated(TEXTS, 9)),
    "a list of nothing": pa.ListArray.from_arrays([0, 999], pa.nulls(999)),
    "fixed lists": pa.FixedSizeListArray.from_arrays(repeated(TEXTS, 9), 9),
    "a struct": pa.StructArray.from_arrays([TEXTS, TEXTS, TEXTS], ["a", "b", "c"]),
    "a map": pa.MapArray.from_arrays([0, 9], pa.array(list("abcdefghi")), repeated(TEXTS, 9)),
    "views": pa.array(["a" * 1200], pa.string_view()),
    "large texts": pa.array(["a" * 1200], pa.large_string()),
    "bytes": pa.array([b"a" * 1200], pa.binary()),
    "a dictionary of lists": repeated(pa.array([[LONG] * 3]), 1),
    "numbers": pa.array([[1.0] * 200]),
}


@pytest.mark.parametrize("case", ONE_ROW)
def test_every_kind_of_value_is_measured(case: str) -> None:
    first = pa.concat_arrays([ONE_ROW[case].slice(0, 0), ONE_ROW[case]])
    batch = pa.record_batch({"x": first})
    with pytest.raises(ConfigError, match="at most"):
        list(bounded_batches(batch, Path("a"), most=MOST))
    (whole,) = bounded_batches(batch, Path("a"), most=100_000)
    assert whole.num_rows == 1


def test_ordinary_rows_stay_together_and_are_cut_at_many() -> None:
    batch = pa.record_batch({"text": ["a"] * 2500, "n": range(2500)})
    parts = list(bounded_batches(batch, Path("a"), most=1 << 20))
    assert [part.num_rows for part in parts] == [1024, 1024, 452]


def test_kinds_that_share_values_in_other_ways_are_refused() -> None:
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([1 << 20], pa.int32()), TEXTS)
    with pytest.raises(ConfigError, match="run_end_encoded"):
        list(bounded_batches(pa.record_batch({"x": runs}), Path("a"), most=MOST))


def test_offsets_that_contradict_each_other_are_refused() -> None:
    offsets = pa.py_buffer(array("i", [0, 5, 1]))
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"a")])
    with pytest.raises(pa.ArrowInvalid):
        list(bounded_batches(pa.record_batch({"text": text}), Path("a"), most=MOST))


UNREAD = {
    "nanoseconds": pa.array([1, 2], pa.timestamp("ns")),
    "a duration of nanoseconds": pa.array([1, 2], pa.duration("ns")),
    "a time beyond Python's": pa.array([10**17, 0], pa.timestamp("s")),
    "an unknown time zone": pa.array([1, 2], pa.timestamp("us", "Mars/Phobos")),
    "decimals": pa.array([1, 2], pa.decimal128(4, 1)),
}


def write_table(path: Path, table: Any) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize("name", UNREAD)
def test_columns_beside_records_need_no_python_value(tmp_path: Path, name: str) -> None:
    columns = {"text": ["One.", "Two."], "created": UNREAD[name]}
    path = write_table(tmp_path / "a.arrow", pa.table(columns))
    records = [each.record for each in files.read_records(path, offset=0)]
    assert records == [{"text": "One."}, {"text": "Two."}]
    assert files.uncompressed_bytes(path, most=1 << 20) < 200


def test_a_time_inside_a_message_is_an_error_of_the_file(tmp_path: Path) -> None:
    messages = pa.array([[{"at": 10**17}]], pa.list_(pa.struct({"at": pa.timestamp("s")})))
    path = write_table(tmp_path / "a.arrow", pa.table({"messages": messages}))
    with pytest.raises(ConfigError, match=r"a\.arrow: after row 0: "):
        list(files.read_records(path, offset=0))


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["One."]), pa.array(["Two."])], names=["text"] * 2)
    path = write_table(tmp_path / "a.arrow", table)
    with pytest.raises(ConfigError, match=r"a\.arrow has two columns 'text'"):
        list(files.read_records(path, offset=0))


def test_a_stream_without_its_end_is_refused(tmp_path: Path) -> None:
    """A writer that is killed leaves whole batches, and the others would be lost in silence."""
    path = tmp_path / "a.arrow"
    table = pa.table({"text": [str(number) for number in range(9)]})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    whole = path.read_bytes()
    assert len(list(files.read_records(path, offset=0))) == 9
    for size in range(8, len(whole), 8):
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"a\.arrow has no end of its stream"):
            list(files.read_records(path, offset=0))


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow", "a.tar"])
@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir])
def test_what_is_no_regular_file_is_refused(
    name: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path / name)
    with pytest.raises(ConfigError, match="not a regular file"):
        list(read_records(tmp_path / name, offset=0))


def test_a_row_with_a_long_list_of_one_text_is_refused_before_it_is_written_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_batches, "_MAX_EXPANDED_BYTES", 2000)
    path = tmp_path / "a.parquet"
    write_parquet(pa.table({"turns": [[LONG] * 9, [LONG]]}), path)
    metadata = pq.read_metadata(path)
    plan = arrow_batches.parquet_plan(metadata, path)
    assert plan.of_group(0, longest=len(LONG), most=1 << 20) == (32, False)
    assert plan.of_group(0, longest=1, most=1 << 20) == (32, True)
    monkeypatch.setattr(files, "_MAX_RECORD_BYTES", 1000)
    with pytest.raises(ConfigError, match="has 3680 bytes"):
        list(read_records(path, offset=0))


@pytest.mark.parametrize("name", WRITERS)
def test_the_size_of_a_file_is_that_of_its_rows_and_not_what_it_says(
    name: str, tmp_path: Path
) -> None:
    table = pa.table({"text": repeated(pa.array([LONG]), 300)})
    WRITERS[name](table, tmp_path / name)
    assert (tmp_path / name).stat().st_size < 300 * len(LONG)
    assert uncompressed_bytes(tmp_path / name, most=1 << 40) == 300 * (len(LONG) + 8)
    assert uncompressed_bytes(tmp_path / name, most=1000) > 1000
