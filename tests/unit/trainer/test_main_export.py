from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig
from drumline_trainer.__main__ import main
from drumline_trainer.adapters.base import base_description
from drumline_trainer.checkpoint.manifest import (
    MANIFEST_DIGEST_FILE,
    MANIFEST_FILE,
    Manifest,
    Piece,
    TensorRecord,
    digest_line,
)
from drumline_trainer.checkpoint.shard_file import write_shard_file
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import import_hugging_face
from drumline_trainer.models.hugging_face.names import our_shapes
from drumline_trainer.models.initialize import initialize
from drumline_trainer.sharding.boxes import Box
from tests.texts import missing

CONFIG = TrainerConfig.from_dict(
    {"model": {"layers": 1, "hidden_size": 8, "heads": 2, "kv_heads": 2, "ffn_size": 16}}
)


def stored(
    folder: Path,
    *,
    config: TrainerConfig = CONFIG,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    average: float = 0.0,
    skipped: int = 0,
    **state: object,
) -> dict[str, torch.Tensor]:
    """Weights in a checkpoint of two ranks, each with half the rows; and a moment.

    They are the model's own that learn, or those of these `shapes`.
    """
    folder.mkdir()
    random = torch.Generator().manual_seed(1)
    if shapes is None:
        whole = our_shapes(config.model)
        shapes = {name: shape for name, shape in whole.items() if config.learns(name)}
    weights = {name: torch.rand(shape, generator=random) for name, shape in shapes.items()}
    tensors = {f"model.{name}": weight for name, weight in weights.items()}
    tensors["optimizer.exp_avg.norm.weight"] = torch.zeros(8)
    if average:
        tensors |= {f"average.{name}": average * weight for name, weight in weights.items()}
    records = {
        name: TensorRecord(dtype="F32", shape=tuple(tensor.shape), pieces=())
        for name, tensor in tensors.items()
    }
    files = {}
    for rank in range(2):
        file, parts = f"rank-{rank}.safetensors", {}
        for name, tensor in tensors.items():
            at = len(tensor) // 2 * rank
            parts[name] = tensor[at : at + len(tensor) // 2 + rank * (len(tensor) % 2)]
            offsets = (at, *[0] * (tensor.dim() - 1))
            piece = Piece(file=file, box=Box(offsets=offsets, shape=tuple(parts[name].shape)))
            known = records[name]
            records[name] = TensorRecord(
                dtype="F32", shape=known.shape, pieces=(*known.pieces, piece)
            )
        files[file] = write_shard_file(folder / file, parts)
    manifest = Manifest(
        step=3,
        world_size=2,
        generation=0,
        attempt=0,
        files=files,
        tensors=records,
        trainer={
            "config": config.to_dict(),
            "loss_scale": {"value": None, "steady": 0, "skipped": skipped},
            **state,
        },
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.encode())
    (folder / MANIFEST_DIGEST_FILE).write_bytes(digest_line(manifest.encode()))
    return weights


def command(folder: Path) -> list[str]:
    file = folder / "config.json"
    file.write_text(json.dumps(CONFIG.to_dict()))
    return ["export", str(folder / "step-3"), str(folder / "out"), "--config", str(file)]


def test_a_checkpoint_becomes_a_folder_with_the_same_weights(tmp_path: Path) -> None:
    weights = stored(tmp_path / "step-3")
    assert main(command(tmp_path)) == ExitCode.OK
    model, read = import_hugging_face(tmp_path / "out")
    result = dict(read)
    assert (model.layers, model.hidden_size, model.heads) == (1, 8, 2)
    assert result.keys() == weights.keys()
    assert all(torch.equal(result[name], weights[name]) for name in weights)


def test_the_model_is_the_one_that_was_trained(tmp_path: Path) -> None:
    trained = replace(CONFIG, model=replace(CONFIG.model, rope_theta=5e5, norm_epsilon=1e-6))
    stored(tmp_path / "step-3", config=trained)
    assert main(["export", str(tmp_path / "step-3"), str(tmp_path / "out")]) == ExitCode.OK
    assert import_hugging_face(tmp_path / "out")[0] == replace(trained.model, max_positions=1024)


@pytest.mark.parametrize("is_there", [True, False])
def test_the_template_of_the_run_s_own_file_is_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_there: bool
) -> None:
    template = tmp_path / "base.jinja"
    if is_there:
        template.write_text("{{ messages }}")
    data = replace(CONFIG.data, chat_template=str(template))
    stored(tmp_path / "step-3", config=replace(CONFIG, data=data))
    assert main(["export", str(tmp_path / "step-3"), str(tmp_path / "out")]) == ExitCode.OK
    written = tmp_path / "out" / "chat_template.jinja"
    assert written.exists() is is_there
    assert is_there or not missing(capsys.readouterr().out, str(template), "No such file")


def test_classes_have_the_names_of_the_data(tmp_path: Path) -> None:
    shape = {"family": "vit", "class_token": True, "kv_heads": 4, "classes": 3}
    config = TrainerConfig.from_dict({"model": shape})
    stored(tmp_path / "step-3", config=config, classes=["ape", "bat", "cow"])
    assert main(["export", str(tmp_path / "step-3"), str(tmp_path / "out")]) == ExitCode.OK
    described = json.loads((tmp_path / "out" / "config.json").read_text())
    assert described["id2label"] == {"0": "ape", "1": "bat", "2": "cow"}
    assert described["label2id"] == {"ape": 0, "bat": 1, "cow": 2}


def test_what_was_frozen_is_exported_as_the_run_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frozen = replace(CONFIG, freeze="embedding.*, layers.0.attention.*")
    base = base_description(frozen)
    stored(tmp_path / "step-3", config=frozen, base=base)
    assert main(["export", str(tmp_path / "step-3"), str(tmp_path / "out")]) == ExitCode.OK
    result = dict(import_hugging_face(tmp_path / "out")[1])
    begun = build_on_meta(CONFIG.model).to_empty(device="cpu")
    initialize(begun, seed=CONFIG.seed)
    learned = stored(tmp_path / "again", config=frozen)
    for name, weight in begun.named_parameters():
        expected = learned[name] if frozen.learns(name) else weight
        assert torch.equal(result[name], expected), name
    asked = ["export", str(tmp_path / "step-3"), str(tmp_path / "none"), "--set", "freeze=norm.*"]
    assert main(asked) == ExitCode.CONFIG
    assert "freeze: the checkpoint's run left other weights" in capsys.readouterr().err


def test_another_model_on_the_command_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "step-3")
    asked = ["export", str(tmp_path / "step-3"), str(tmp_path / "out")]
    assert main([*asked, "--set", "model.rope_theta=500000.0"]) == ExitCode.CONFIG
    assert not missing(capsys.readouterr().err, "model.rope_theta", "10000.0", "500000.0")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["rank-1.safetensors", MANIFEST_FILE])
def test_what_does_not_verify_is_not_exported(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "step-3")
    body = bytearray((tmp_path / "step-3" / name).read_bytes())
    body[-3] ^= 1
    (tmp_path / "step-3" / name).write_bytes(body)
    assert main(command(tmp_path)) == ExitCode.CORRUPT_CHECKPOINT
    assert name in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_average_is_written_where_asked_and_there_is_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = stored(tmp_path / "step-3", average=0.5)
    assert main([*command(tmp_path), "--average"]) == ExitCode.OK
    result = dict(import_hugging_face(tmp_path / "out")[1])
    assert all(torch.equal(result[name], 0.5 * weights[name]) for name in weights)
    stored(tmp_path / "without")
    arguments = ["export", str(tmp_path / "without"), str(tmp_path / "none"), "--average"]
    assert main(arguments) == ExitCode.CONFIG
    assert "optimizer.average_decay was 0" in capsys.readouterr().err


def test_an_average_of_no_update_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stored(tmp_path / "step-3", average=0.5, skipped=3)
    assert main([*command(tmp_path), "--average"]) == ExitCode.CONFIG
    assert "every step was skipped" in capsys.readouterr().err
    assert main(command(tmp_path)) == ExitCode.OK
