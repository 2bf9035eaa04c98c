"""Folders that are no model yet: the message says what they are, and where the model lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline_contract import ExitCode
from drumline_contract.config import ConfigError
from drumline_contract.regular_files import LFS_POINTER
from drumline_contract.shapes.hugging_face import HuggingFaceError
from drumline_trainer.__main__ import main
from drumline_trainer.data.records.tokenizer import LoadedTokenizer
from drumline_trainer.models.hugging_face import check_hugging_face, export_hugging_face
from drumline_trainer.models.hugging_face.files import weights_digest
from tests.unit.trainer.test_export import begun
from tests.unit.trainer.test_main_export import CONFIG


@pytest.fixture
def model(tmp_path: Path) -> Path:
    export_hugging_face(begun(CONFIG), CONFIG.model, tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pointer_of_git_lfs_is_said(model: Path, name: str) -> None:
    """Git leaves one in place of each large file where Git LFS is not installed."""
    (model / name).write_bytes(LFS_POINTER + b"spec/v1\noid sha256:00\nsize 9\n")
    with pytest.raises(HuggingFaceError, match=rf"{name}: is a pointer of Git LFS"):
        check_hugging_face(model, CONFIG.model)


def test_a_pointer_in_place_of_weights_has_no_digest(model: Path) -> None:
    (model / "model.safetensors").write_bytes(LFS_POINTER)
    with pytest.raises(HuggingFaceError, match="is a pointer of Git LFS"):
        weights_digest(model)


def test_a_pointer_in_place_of_a_tokenizer_is_said(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(LFS_POINTER)
    with pytest.raises(ConfigError, match=r"tokenizer\.json is a pointer of Git LFS"):
        LoadedTokenizer.of(tmp_path / "tokenizer.json")


@pytest.mark.parametrize("below", ["checkpoint-100", "snapshots/4f2a"])
def test_a_folder_above_the_model_names_the_model(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], below: str
) -> None:
    inside = tmp_path / "above" / below
    inside.parent.mkdir(parents=True)
    model.rename(inside)
    asked = ["import", str(tmp_path / "above"), str(tmp_path / "run.json")]
    assert main(asked) == ExitCode.CONFIG
    assert f"has no config.json; name {inside}" in capsys.readouterr().err


def test_adapters_are_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    assert main(["import", str(tmp_path), str(tmp_path / "run.json")]) == ExitCode.CONFIG
    assert "name it in lora.adapters_from" in capsys.readouterr().err
