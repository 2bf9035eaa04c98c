"""The family transformers in a configuration: what it says, and what it is refused with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import ConfigError, Family, FolderConfig, TrainerConfig
from drumline_contract.config.saved import changed_settings, refuse_other_model
from drumline_contract.layout_validation import ViolationReason, violations
from drumline_contract.shapes.hugging_face import HuggingFaceError, with_model_of_folder
from drumline_planner.memory_check import check_memory
from tests.texts import missing
from tests.unit.trainer.planner.clusters import cluster

LLAMA = {"model_type": "llama", "vocab_size": 300, "hidden_size": 16, "rms_norm_eps": 1e-5}


def folder_of(folder: Path, config: dict[str, Any] = LLAMA) -> str:
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def of_transformers(**changes: Any) -> dict[str, Any]:
    return {"model": {"family": "transformers"}, **changes}


@pytest.mark.parametrize("field", ["model_from", "config_from"])
def test_the_config_json_of_the_folder_becomes_the_model(tmp_path: Path, field: str) -> None:
    raw = of_transformers(**{field: folder_of(tmp_path)})
    config = TrainerConfig.from_dict(with_model_of_folder(raw))
    assert config.model.family is Family.TRANSFORMERS
    assert config.model.vocab_size == 300
    assert json.loads(config.model.config_json) == LLAMA
    assert config.folder == str(tmp_path)
    assert TrainerConfig.from_dict(config.written()) == config


def test_what_says_how_files_were_written_is_no_part_of_the_model(tmp_path: Path) -> None:
    about = {"dtype": "bfloat16", "architectures": ["X"], "auto_map": {"AutoConfig": "evil.py"}}
    raw = of_transformers(config_from=folder_of(tmp_path, LLAMA | about))
    assert json.loads(with_model_of_folder(raw)["model"]["config_json"]) == LLAMA


FP8 = {"quant_method": "fp8", "fmt": "float8_e4m3fn", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    "packing",
    [
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        {"quant_method": "compressed-tensors", "format": "int-quantized"},
        {"quant_method": "bitnet"},
        FP8 | {"weight_block_size": [64, 64]},
    ],
)
@pytest.mark.parametrize("inside", [False, True])
def test_packed_weights_of_other_kinds_are_refused(
    tmp_path: Path, packing: dict[str, Any], *, inside: bool
) -> None:
    packed = {"quantization_config": packing}
    folder = folder_of(tmp_path, LLAMA | ({"text_config": packed} if inside else packed))
    with pytest.raises(HuggingFaceError, match=r"quantization_config (is|says)"):
        with_model_of_folder(of_transformers(model_from=folder))
    with_model_of_folder(of_transformers(config_from=folder))


def test_packed_weights_that_are_unpacked_are_taken(tmp_path: Path) -> None:
    for packing in (FP8, {"quant_method": "mxfp4"}, None):
        raw = of_transformers(
            model_from=folder_of(tmp_path, LLAMA | {"quantization_config": packing})
        )
        assert json.loads(with_model_of_folder(raw)["model"]["config_json"]) == LLAMA
    nested = LLAMA | {"text_config": {"quantization_config": FP8}}
    raw = of_transformers(model_from=folder_of(tmp_path, nested))
    described = json.loads(with_model_of_folder(raw)["model"]["config_json"])
    assert described == LLAMA | {"text_config": {}}


def test_the_vocabulary_may_be_that_of_the_text_part(tmp_path: Path) -> None:
    nested = {"model_type": "gemma3", "text_config": {"vocab_size": 77}}
    raw = of_transformers(config_from=folder_of(tmp_path, nested))
    assert with_model_of_folder(raw)["model"]["vocab_size"] == 77


def test_a_config_json_without_vocabulary_is_refused(tmp_path: Path) -> None:
    raw = of_transformers(config_from=folder_of(tmp_path, {"model_type": "llama"}))
    with pytest.raises(HuggingFaceError, match="vocab_size"):
        with_model_of_folder(raw)
    raw["model"]["vocab_size"] = 9
    assert with_model_of_folder(raw)["model"]["vocab_size"] == 9


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"model": {"layers": 3}}, ["model.layers"]),
        ({"model": {"dropout": 0.1}}, ["model.dropout"]),
        ({"compile": "blocks"}, ["compile"]),
        ({"precision": "bf16", "fp8": True}, ["fp8"]),
        ({"parallelism": {"mode": "auto"}}, ["parallelism.mode", "data_parallel"]),
        ({"optimizer": {"kind": "muon"}}, ["muon"]),
        ({"memory": {"recompute": "blocks"}}, ["recompute"]),
        ({"memory": {"offload_parameters": "cpu"}}, ["offload_parameters"]),
        ({"model_from": "/m", "config_from": "/c"}, ["config_from", "model_from"]),
        ({"config_from": ""}, ["config_from"]),
    ],
    ids=str,
)
def test_what_it_is_not_trained_with_is_refused_by_name(
    changes: dict[str, Any], names: list[str]
) -> None:
    model = {"family": "transformers", **changes.get("model", {})}
    raw = {"config_from": "/c", **changes, "model": model}
    with pytest.raises(ConfigError) as caught:
        FolderConfig.from_dict(raw)
    assert not missing(str(caught.value), *names)


@pytest.mark.parametrize("changes", [{"config_from": "/c"}, {"model": {"config_json": "{}"}}])
def test_its_fields_are_of_no_other_family(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"config_from|config_json"):
        TrainerConfig.from_dict(changes)


@pytest.mark.parametrize("axis", ["pipeline", "context"])
def test_its_module_is_not_cut(axis: str) -> None:
    raw = of_transformers(config_from="/c", parallelism={axis: 2}, global_batch_size=8)
    config = FolderConfig.from_dict(raw).settings
    [violation] = violations(config, world_size=4)
    assert violation.reason is ViolationReason.TRANSFORMERS
    assert not missing(violation.text, f"parallelism.{axis}", "fsdp")


def test_no_bill_is_made_of_it() -> None:
    config = FolderConfig.from_dict(of_transformers(config_from="/c")).settings
    assert check_memory(config, cluster=cluster(8)) is None


def test_a_checkpoint_of_another_config_json_names_the_keys(tmp_path: Path) -> None:
    config, other = (
        TrainerConfig.from_dict(
            with_model_of_folder(of_transformers(config_from=folder_of(tmp_path, each)))
        )
        for each in (LLAMA, LLAMA | {"rms_norm_eps": 1e-3})
    )
    saved = {"config": config.to_dict()}
    refuse_other_model(saved, config.model)
    assert changed_settings(saved, config) == ""
    with pytest.raises(ConfigError, match=r"rms_norm_eps is 1e-05 there and 0\.001"):
        refuse_other_model(saved, other.model)
