"""Which weights a folder holds is known by their content."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from drumline_contract.buckets.failures import StoreError
from drumline_contract.config import ModelConfig
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import (
    HuggingFaceError,
    export_hugging_face,
    weights_digest,
)
from drumline_trainer.models.initialize import initialize

MODEL = ModelConfig(hidden_size=16, ffn_size=32, heads=4, kv_heads=2, layers=2)


def weights(seed: int) -> dict[str, Tensor]:
    model = build_on_meta(MODEL).to_empty(device="cpu")
    initialize(model, seed=seed)
    return {name: weight.detach() for name, weight in model.named_parameters()}


def test_releases_with_the_same_names_and_sizes_are_told_apart(tmp_path: Path) -> None:
    for name, seed in (("base", 1), ("instruct", 2), ("copy", 1)):
        export_hugging_face(weights(seed), MODEL, tmp_path / name)
    base, instruct, copy = (weights_digest(tmp_path / n) for n in ("base", "instruct", "copy"))
    assert base == copy
    assert base != instruct


def test_one_tensor_that_was_trained_is_another_content(tmp_path: Path) -> None:
    ours = weights(1)
    export_hugging_face(ours, MODEL, tmp_path / "before")
    ours["layers.1.attention.value.weight"] = ours["layers.1.attention.value.weight"] * 1.01
    export_hugging_face(ours, MODEL, tmp_path / "after")
    assert weights_digest(tmp_path / "before") != weights_digest(tmp_path / "after")


def test_weights_in_other_files_are_the_same(tmp_path: Path) -> None:
    export_hugging_face(weights(1), MODEL, tmp_path / "whole")
    export_hugging_face(weights(1), MODEL, tmp_path / "parts", max_file_bytes=4_000)
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "parts")


def test_a_folder_without_weights_has_no_identity(tmp_path: Path) -> None:
    with pytest.raises(HuggingFaceError, match=r"model\.safetensors"):
        weights_digest(tmp_path)


def test_a_storage_that_does_not_answer_may_come_back(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("/proc/self/mem")  # where byte 0 is an I/O error
    with pytest.raises(StoreError, match=r"model\.safetensors: Input/output error") as lost:
        weights_digest(tmp_path)
    assert lost.value.may_come_back


def test_large_tensors_count_with_their_middle_and_their_end(tmp_path: Path) -> None:
    from safetensors.torch import save_file  # noqa: PLC0415 - untyped

    digests: set[str] = set()
    for place in (None, 0, 50_000, 99_999):
        values = torch.zeros(100_000)
        if place is not None:
            values[place] = 1.0
        save_file({"w": values}, tmp_path / "model.safetensors")
        digests.add(weights_digest(tmp_path))
    assert len(digests) == 4
