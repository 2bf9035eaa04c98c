"""Parquet and Arrow files: the samples of the same lines, from any row on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from drumline_contract.config import ConfigError, DataConfig
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.data.records.files import read_records
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.tokenize import TokenizeOptions, tokenize
from tests.unit.trainer.data.records.conversations import (
    conversation,
    write_chat_model,
    write_lines,
)

RECORDS = [conversation(number) for number in range(20)]
ROWS = 3
"""Of a group or a batch of the files, so that reading goes on within one and between two."""


def write_parquet(file: Path, table: pa.Table) -> None:
    pq.write_table(table, file, row_group_size=ROWS)


def write_stream(file: Path, table: pa.Table) -> None:
    """As the library datasets saves its own."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS)


def write_file(file: Path, table: pa.Table) -> None:
    """Arrow's other form, with a table of its batches at the end."""
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=ROWS)


WRITERS = {
    "a.parquet": write_parquet,
    "stream.arrow": write_stream,
    "file.arrow": write_file,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chat_model(tmp_path_factory.mktemp("model"))


def written(folder: Path, name: str, records: list[dict[str, Any]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    write: Callable[[Path, pa.Table], None] = WRITERS[name]
    write(file, pa.Table.from_pylist(records))
    return file


def opened(source: Path, model: Path) -> Dataset:
    config = DataConfig(source=str(source), pattern="**/*", sequence_length=64)
    return open_dataset(config, seed=0, model_folder=model)


@pytest.mark.parametrize("name", WRITERS)
def test_the_samples_are_those_of_the_lines(tmp_path: Path, model: Path, name: str) -> None:
    lines = write_lines(tmp_path / "lines" / "a.jsonl", RECORDS).parent
    file = written(tmp_path / "columns", name, RECORDS)
    assert opened(file.parent, model).fingerprint() == opened(lines, model).fingerprint()


@pytest.mark.parametrize("name", WRITERS)
def test_reading_goes_on_at_any_row(tmp_path: Path, name: str) -> None:
    file = written(tmp_path, name, RECORDS)
    whole = list(read_records(file, offset=0))
    assert [stored.record for stored in whole] == RECORDS
    for number in (1, ROWS, ROWS + 1, 20):
        assert list(read_records(file, offset=whole[number - 1].after)) == whole[number:]


def test_a_field_that_a_row_has_not_is_none_of_its_fields(tmp_path: Path) -> None:
    records = [{"text": "a"}, {"prompt": "b", "completion": "c"}]
    file = tmp_path / "a.parquet"
    columns = ("text", "prompt", "completion")
    rows = [{name: record.get(name) for name in columns} for record in records]
    write_parquet(file, pa.Table.from_pylist(rows))
    assert [stored.record for stored in read_records(file, offset=0)] == records


def test_a_map_of_a_column_is_an_object(tmp_path: Path) -> None:
    values = pa.array([[("city", "Paris")], []], pa.map_(pa.string(), pa.string()))
    write_parquet(tmp_path / "a.parquet", pa.table({"text": ["a", "b"], "about": values}))
    about = [each.record["about"] for each in read_records(tmp_path / "a.parquet", offset=0)]
    assert about == [{"city": "Paris"}, {}]
    twice = pa.array([[("city", "Paris"), ("city", "Rome")]], values.type)
    write_parquet(tmp_path / "b.parquet", pa.table({"about": twice}))
    with pytest.raises(ConfigError, match="same key twice"):
        list(read_records(tmp_path / "b.parquet", offset=0))


@pytest.mark.parametrize("name", WRITERS)
def test_json_of_a_column_is_decoded(tmp_path: Path, name: str) -> None:
    """The library datasets keeps values of mixed types as JSON, at any depth."""
    said = pa.array(['"Say \\"four\\"\\n"', '[{"type": "text", "text": "Two?"}]'], pa.json_())
    turns = pa.StructArray.from_arrays([pa.array(["user", "user"]), said], ["role", "content"])
    tools = pa.array(['{"name": "f", "default": null}', None], pa.json_())
    about = pa.array(["[1]"], pa.json_())
    columns = {
        "messages": pa.ListArray.from_arrays([0, 1, 2], turns),
        "tools": pa.ListArray.from_arrays(pa.array([0, None, 2], pa.int32()), tools),
        "about": pa.MapArray.from_arrays([0, 1, 1], pa.array(["a"]), about),
        "note": pa.array(['"one"', "2"], pa.json_()),
    }
    table = pa.table(columns)
    WRITERS[name](tmp_path / name, table)
    assert [stored.record for stored in read_records(tmp_path / name, offset=0)] == [
        {
            "messages": [{"role": "user", "content": 'Say "four"\n'}],
            "tools": [{"name": "f", "default": None}, None],
            "about": {"a": [1]},
            "note": "one",
        },
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Two?"}]}],
            "about": {},
            "note": 2,
        },
    ]


@pytest.mark.parametrize("text", ["{", "[" * 100_000])
def test_json_of_a_column_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a.parquet"
    write_parquet(file, pa.table({"text": pa.array(["4", text], pa.json_())}))
    with pytest.raises(ConfigError, match=r"row 2 of .*a\.parquet has a column of JSON"):
        list(read_records(file, offset=0))


def test_shards_are_made_of_parquet_too(tmp_path: Path, model: Path) -> None:
    written(tmp_path / "data", "a.parquet", RECORDS)
    options = TokenizeOptions(
        source=tmp_path / "data",
        pattern="*.parquet",
        tokenizer=model / "tokenizer.json",
        output=tmp_path / "shards",
        shard_tokens=200,
    )
    assert len(tokenize(options, print_line=lambda _: None).shards) > 1
    direct, shards = (opened(tmp_path / name, model) for name in ("data", "shards"))
    samples = range(direct.windows)
    assert np.array_equal(direct.batch(samples).targets, shards.batch(samples).targets)


def test_a_saved_data_set_s_parts_are_read_in_their_order_and_splits_are_asked_for(
    tmp_path: Path, model: Path
) -> None:
    lines = write_lines(tmp_path / "lines" / "a.jsonl", RECORDS).parent
    whole = tmp_path / "saved"
    for split, counts in (("train", (10, 10)), ("test", (2,))):
        (whole / split).mkdir(parents=True)
        (whole / split / "state.json").write_text("{}")
        for part, count in enumerate(counts):
            table = pa.Table.from_pylist(RECORDS[10 * part : 10 * part + count])
            write_stream(whole / split / f"data-{part:05d}-of-{len(counts):05d}.arrow", table)
    (whole / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    assert opened(whole / "train", model).fingerprint() == opened(lines, model).fingerprint()
    with pytest.raises(ConfigError, match="with the splits test, train; name the folder of one"):
        opened(whole, model)


def test_what_datasets_keeps_beside_a_saved_set_is_not_learned_twice(
    tmp_path: Path, model: Path
) -> None:
    folder = tmp_path / "saved"
    folder.mkdir()
    write_stream(folder / "data-00000-of-00001.arrow", pa.Table.from_pylist(RECORDS))
    before = opened(folder, model).fingerprint()
    write_stream(folder / "cache-1f2e3d4c5b6a7980.arrow", pa.Table.from_pylist(RECORDS))
    write_stream(folder / "data-00001-of-00002.arrow", pa.Table.from_pylist(RECORDS))
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
    (folder / "state.json").write_text(json.dumps(state))
    assert opened(folder, model).fingerprint() == before


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_a_broken_file_is_named(tmp_path: Path, model: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"no such thing")
    with pytest.raises(ConfigError, match=name):
        opened(tmp_path, model)


def test_a_file_that_is_cut_off_is_named(tmp_path: Path) -> None:
    for name in WRITERS:
        file = written(tmp_path, name, RECORDS)
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        with pytest.raises(ConfigError, match=name):
            list(read_records(file, offset=0))
