"""Data sets as the library datasets saves them: the samples of the same lines.

The files themselves are read in `tests/unit/trainer/data/records/test_columns.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

datasets = pytest.importorskip("datasets", reason="make test-all WHAT=libraries")

from drumline_contract.config import ConfigError, DataConfig  # noqa: E402
from drumline_trainer.data.records.files import read_records  # noqa: E402
from drumline_trainer.data.sources import open_dataset  # noqa: E402
from tests.unit.trainer.data.records.conversations import (  # noqa: E402
    conversation,
    write_chat_model,
    write_lines,
)

RECORDS = [conversation(number) for number in range(20)]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_chat_model(tmp_path / "model")


def fingerprint(source: Path, model: Path, **changes: Any) -> str:
    config = DataConfig(source=str(source), **{"pattern": "**/*", "sequence_length": 64, **changes})
    return open_dataset(config, seed=0, model_folder=model).fingerprint()


def test_every_format_gives_the_tokens_of_the_lines(tmp_path: Path, model: Path) -> None:
    expected = fingerprint(write_lines(tmp_path / "lines" / "a.jsonl", RECORDS).parent, model)
    made = datasets.Dataset.from_list(RECORDS)
    (tmp_path / "parquet").mkdir()
    made.to_parquet(tmp_path / "parquet" / "a.parquet")
    made.save_to_disk(tmp_path / "saved", num_shards=3)
    splits = datasets.DatasetDict({"train": made, "test": made.select(range(2))})
    splits.save_to_disk(tmp_path / "splits")
    for folder in (tmp_path / "parquet", tmp_path / "saved", tmp_path / "splits" / "train"):
        assert fingerprint(folder, model) == expected
    with pytest.raises(ConfigError, match="with the splits test, train; name the folder of one"):
        fingerprint(tmp_path / "splits", model)


def test_values_of_mixed_types_are_those_of_the_lines(tmp_path: Path, model: Path) -> None:
    parts = [{"type": "text", "text": "Say it"}]
    mixed = [{"messages": [{"role": "user", "content": parts}, *RECORDS[0]["messages"][1:]]}]
    records = [*RECORDS, *mixed]
    lines = write_lines(tmp_path / "lines" / "a.jsonl", records)
    expected = fingerprint(lines.parent, model)
    made = datasets.Dataset.from_json(str(lines), cache_dir=str(tmp_path / "cache"))
    assert "Json" in str(made.features)
    (tmp_path / "parquet").mkdir()
    made.to_parquet(tmp_path / "parquet" / "a.parquet")
    made.save_to_disk(tmp_path / "saved")
    for folder in (tmp_path / "parquet", tmp_path / "saved"):
        assert fingerprint(folder, model) == expected


def test_reading_goes_on_at_any_row(tmp_path: Path) -> None:
    made = datasets.Dataset.from_list(RECORDS)
    made.save_to_disk(tmp_path, max_shard_size="1GB")
    [file] = tmp_path.glob("*.arrow")
    whole = list(read_records(file, offset=0))
    assert [stored.record for stored in whole] == RECORDS
    for number in (1, 7, 20):
        assert list(read_records(file, offset=whole[number - 1].after)) == whole[number:]
