"""Tensor and pipeline ranks learn from images what one process learns from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline_contract.config import merge
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.hugging_face.names import our_shapes
from tests.layouts.cases import STEPS, Case
from tests.layouts.images import CHANNELS, CLASSES, SIDE, write_images
from tests.layouts.judge import failings
from tests.layouts.runs import Runs

pytestmark = [pytest.mark.gloo, pytest.mark.extended(keep=2, of="kinds of layout")]


CASES = [
    Case(data="fsdp", model="gpt2", tensor=2),
    Case(data="zero2", model="gpt2", pipeline="1f1b", tensor=2),
]


@pytest.fixture(scope="module")
def images(runs: Runs) -> dict[str, Any]:
    """What makes a run of text one of images."""
    shape = {"image_size": SIDE, "patch_size": 2, "channels": CHANNELS, "classes": CLASSES}
    return {
        "model": {"family": "vit", **shape},
        "data": {"source": str(write_images(runs.folder / "images"))},
    }


@pytest.mark.parametrize("layout", CASES, ids=[each.name for each in CASES])
def test_a_layout_learns_images_as_one_process_does(
    runs: Runs, images: dict[str, Any], layout: Case
) -> None:
    expected = runs.plain(layout, **images)
    assert failings(runs.whole(layout, **images), expected) == []
    assert expected.losses[STEPS] < expected.losses[1]


TOKEN_SIDE = 6
"""Nine patches and a class token: as many positions as two ranks share out."""
TOKEN_CASES = [
    Case(data="fsdp", model="gpt2", tensor=2),
    Case(data="ddp", model="gpt2", pipeline="1f1b"),
]


@pytest.mark.parametrize("layout", TOKEN_CASES, ids=[each.name for each in TOKEN_CASES])
def test_a_layout_learns_with_a_class_token(
    runs: Runs, images: dict[str, Any], tmp_path: Path, layout: Case
) -> None:
    model = {"image_size": TOKEN_SIDE, "class_token": True}
    source = {"source": str(write_images(tmp_path / "images", side=TOKEN_SIDE))}
    changes = merge(images, {"model": model, "data": source})
    expected = runs.plain(layout, **changes)
    assert failings(runs.whole(layout, **changes), expected) == []
    assert expected.losses[STEPS] < expected.losses[1]


def test_a_layout_begins_from_a_folder_of_other_classes_and_images(
    runs: Runs, images: dict[str, Any], tmp_path: Path
) -> None:
    """Every rank makes its part of the new classifier, and interpolates its part of positions."""
    layout = Case(data="fsdp", model="gpt2", tensor=2)
    changes = merge(images, {"model": {"class_token": True}})
    trained = layout.config(**merge(runs.text, changes)).model
    described = replace(trained, classes=5, image_size=4)
    random = torch.Generator().manual_seed(1)
    weights = {
        name: 0.1 * torch.randn(shape, generator=random)
        for name, shape in our_shapes(described).items()
    }
    export_hugging_face(weights, described, tmp_path / "base")
    changes |= {
        "model_from": str(tmp_path / "base"),
        "parallelism": {**layout.parallelism, "sequence_parallel": False},
    }
    alone = {**changes, "parallelism": {}}
    expected = runs.plain(layout, **alone)
    assert failings(runs.whole(layout, **changes), expected) == []
    assert expected.losses[STEPS] < expected.losses[1]
