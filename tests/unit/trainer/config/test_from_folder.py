"""A configuration whose model is read later names none, and is checked as far as that goes."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    FolderConfig,
    TrainerConfig,
    has_model_of_folder,
)

FOLDER = {"model_from": "/data/mistral"}


def test_what_is_written_leaves_the_model_to_the_folder() -> None:
    raw = {**FOLDER, "seed": 3, "model": {"dropout": 0.1}}
    assert FolderConfig.from_dict(raw).written() == raw
    assert has_model_of_folder(raw)


@pytest.mark.parametrize("name", ["tiny", "llama-8b"])
def test_a_built_in_model_is_written_so_that_no_folder_is_asked(name: str) -> None:
    config = TrainerConfig(model=MODEL_PRESETS[name], model_from="/data/mistral")
    assert not has_model_of_folder(config.written())
    assert TrainerConfig.from_dict(config.written()) == config


def test_with_the_folders_model_it_is_a_whole_configuration() -> None:
    raw = {**FOLDER, "steps": 7, "model": {"dropout": 0.1}}
    config = FolderConfig.from_dict(raw).with_model(MODEL_PRESETS["llama-8b"])
    assert (config.model.layers, config.model.dropout, config.steps) == (32, 0.1, 7)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({}, "model_from: missing; name the folder"),
        ({"model_from": 3}, "model_from: must be str"),
        ({"model_from": "s3://Bucket"}, r"^model_from: must be a folder, s3://BUCKET/PREFIX, "),
        ({"model_from": "s3://bad bucket"}, "^model_from: must be"),
        ({"model_from": "s3://"}, "^model_from: must be"),
        ({"model_from": "http://host/model"}, "^model_from: must be"),
        (
            {**FOLDER, "lora": {"rank": 2, "adapters_from": "gs://a/../b"}},
            "^lora.adapters_from: must be a folder",
        ),
        ({**FOLDER, "model": {"hidden_size": 64}}, "model.hidden_size: the folder in model_from"),
        ({**FOLDER, "model": {"dropuot": 0.1}}, "did you mean 'dropout'"),
        ({**FOLDER, "model": {"dropout": "much"}}, "model.dropout: must be float"),
        ({**FOLDER, "stepz": 1}, "stepz: unknown field"),
    ],
)
def test_what_cannot_work_with_any_model_is_named(raw: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        FolderConfig.from_dict(raw)
