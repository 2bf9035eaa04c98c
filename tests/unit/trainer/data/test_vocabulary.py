"""Tokens are those that a pretrained model knows, or the run is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.data.run_data import check_vocabulary
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.tokenize import tokenize
from tests.unit.trainer.data.shard_examples import order, write_text


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    return folder


def check(source: Path, model: Path | None, **changes: Any) -> None:
    data = {"source": str(source), "pattern": "**/*.txt", "sequence_length": 16}
    config = TrainerConfig.from_dict(
        {
            "model": {"vocab_size": changes.pop("vocab_size", 4096)},
            "model_from": None if model is None else str(model),
            "data": data | changes,
        }
    )
    check_vocabulary(open_dataset(config.data, seed=0), config)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_text(tmp_path / "text", files=9)


def test_bytes_are_no_tokens_of_a_pretrained_model(text: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match="is text, which is read as bytes, and the model of"):
        check(text, model, vocab_size=128_256)
    (model / "tokenizer.model").touch()
    with pytest.raises(ConfigError, match="make token shards with"):
        check(text, model, vocab_size=258)


def test_a_model_of_bytes_learns_more_bytes(text: Path, model: Path) -> None:
    check(text, model, vocab_size=258)
    check(text, None, vocab_size=128_256)


def test_shards_are_of_the_models_tokenizer(tmp_path: Path, model: Path) -> None:
    asked = order(tmp_path)
    tokenize(asked, print_line=lambda _: None)
    check(asked.output, model)  # nothing to compare with
    shutil.copy(asked.tokenizer, model / "tokenizer.json")
    check(asked.output, model)
    (model / "tokenizer.json").write_text((asked.tokenizer).read_text() + " ")
    with pytest.raises(ConfigError, match="SHA-256"):
        check(asked.output, model)
    check(asked.output, model, tokenizer=str(asked.tokenizer))
