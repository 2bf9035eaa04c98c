from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import drumline_trainer
from drumline_contract.config import ConfigError, DataConfig, ModelConfig
from drumline_contract.config.variants import Family
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.tokenize import tokenize
from tests.texts import missing
from tests.unit.trainer.data.shard_examples import order

PACKAGE = Path(drumline_trainer.__file__).parent


@pytest.fixture
def shards(tmp_path: Path) -> DataConfig:
    asked = order(tmp_path)
    tokenize(asked, print_line=lambda _: None)
    return DataConfig(source=str(asked.output), sequence_length=16, tokenizer=str(asked.tokenizer))


def refused(config: DataConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        open_dataset(config, seed=0)
    return str(caught.value)


def test_too_little_text_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"0123456789")
    message = refused(DataConfig(source=str(tmp_path), sequence_length=10))
    assert not missing(message, "data.sequence_length", "10 tokens")


def test_text_needs_a_model_that_knows_all_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(bytes(100))
    dataset = open_dataset(DataConfig(source=str(tmp_path), sequence_length=10), seed=0)
    dataset.check_model(ModelConfig(vocab_size=256))
    with pytest.raises(ConfigError, match=r"vocab_size.*255.*256 tokens"):
        dataset.check_model(ModelConfig(vocab_size=255))


def test_a_folder_with_an_index_is_read_as_tokens(shards: DataConfig) -> None:
    dataset = open_dataset(shards, seed=0)
    assert dataset.batch(range(9)).inputs.max() >= 256
    assert open_dataset(replace(shards, tokenizer=None), seed=0).windows == dataset.windows


def test_a_model_that_knows_fewer_tokens_is_refused(shards: DataConfig) -> None:
    known = Tokenizer.from_file(str(shards.tokenizer)).get_vocab_size()
    dataset = open_dataset(shards, seed=0)
    dataset.check_model(ModelConfig(vocab_size=known))
    with pytest.raises(
        ConfigError, match=rf"model.vocab_size: {known - 1} is less than the {known}"
    ):
        dataset.check_model(ModelConfig(vocab_size=known - 1))


def test_a_model_of_images_is_refused(shards: DataConfig) -> None:
    with pytest.raises(ConfigError, match=r"model\.family"):
        open_dataset(shards, seed=0).check_model(ModelConfig(family=Family.VIT))


def test_another_tokenizer_than_the_shards_is_refused(shards: DataConfig, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    assert "made with" in refused(replace(shards, tokenizer=str(other)))
    absent = refused(replace(shards, tokenizer=str(tmp_path / "absent.json")))
    assert absent == f"data.tokenizer: {tmp_path}/absent.json: No such file or directory"


def test_a_folder_of_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"PAR1" + b"x" * 1000)
    message = refused(DataConfig(source=str(tmp_path), pattern="**/*"))
    assert message.startswith(f"data.source: {tmp_path}/a.bin is Parquet")
    (tmp_path / "a.bin").rename(tmp_path / "a.parquet")
    message = refused(DataConfig(source=str(tmp_path), pattern="**/*"))
    assert not missing(message, "tokenizer.json")


def test_text_with_a_tokenizer_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x" * 1000)
    message = refused(DataConfig(source=str(tmp_path), tokenizer="/t.json"))
    assert message.startswith("data.tokenizer: ")
    assert f"tokenize --source {tmp_path} --tokenizer /t.json --output FOLDER" in message


def test_no_data_module_loads_what_its_configuration_may_not_ask_for() -> None:
    modules = [
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for path in (PACKAGE / "data").rglob("[a-z]*.py")
    ]
    assert "drumline_trainer.data.shards.s3_store" in modules
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {', '.join(modules)}; print(*sys.modules)"],
        env={"PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not {"torch", "obstore", "tokenizers"} & set(done.stdout.split())
