from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drumline_contract import ExitCode
from drumline_contract.config import ConfigError, ModelConfig
from drumline_trainer.__main__ import configured, main
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.hugging_face.names import our_shapes
from tests.texts import missing

MODEL = ModelConfig(layers=1, hidden_size=8, heads=2, kv_heads=1, ffn_size=16, vocab_size=300)


def exported(folder: Path) -> Path:
    weights = {name: torch.zeros(shape) for name, shape in our_shapes(MODEL).items()}
    export_hugging_face(weights, MODEL, folder)
    return folder


def test_a_folder_becomes_a_configuration_that_begins_from_it(tmp_path: Path) -> None:
    folder, target = exported(tmp_path / "llama"), tmp_path / "run.json"
    settings = ["--set", "steps=7", "--set", "model.dropout=0.1"]
    assert main(["import", str(folder), str(target), *settings]) == ExitCode.OK
    config = configured(target, preset=None, settings=[])
    assert config.model_from == str(folder)
    assert (config.model.vocab_size, config.model.kv_heads, config.steps) == (300, 1, 7)
    assert config.model.dropout == 0.1


def test_a_folder_that_cannot_be_begun_from_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, target = exported(tmp_path / "llama"), tmp_path / "run.json"
    described = json.loads((folder / "config.json").read_text())
    described["num_hidden_layers"] = 2
    (folder / "config.json").write_text(json.dumps(described))
    assert main(["import", str(folder), str(target)]) == ExitCode.CONFIG
    assert not missing(capsys.readouterr().err, "model.layers.1")
    assert main(["import", str(tmp_path / "absent"), str(target)]) == ExitCode.CONFIG
    assert "config.json: No such file" in capsys.readouterr().err
    assert not target.exists()


def test_a_run_that_names_no_model_has_that_of_its_folder(tmp_path: Path) -> None:
    folder = exported(tmp_path / "llama")
    settings = [f"model_from={folder}", "model.dropout=0.1"]
    chosen = configured(None, preset=None, settings=settings).model
    assert chosen == replace(MODEL, dropout=0.1)
    assert configured(None, preset="tiny", settings=settings).model.hidden_size == 64
    with pytest.raises(ConfigError, match=r"has no config\.json; name .*llama$"):
        configured(None, preset=None, settings=[f"model_from={tmp_path}"])
