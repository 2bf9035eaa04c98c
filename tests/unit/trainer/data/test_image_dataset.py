from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from drumline_contract.config import ConfigError, DataConfig, ModelConfig
from drumline_contract.config.variants import Family
from drumline_trainer.data.corpus import CorpusChangedError
from drumline_trainer.data.sources import open_dataset

IMAGES = np.arange(5 * 2 * 3 * 3, dtype=np.uint8).reshape(5, 2, 3, 3)
SQUARES = np.zeros((5, 4, 4, 3), dtype=np.uint8)


def write(folder: Path, *, images: object = IMAGES, labels: object = (7, 8, 9, 10, 11)) -> str:
    np.save(folder / "images.npy", images, allow_pickle=False)
    np.save(folder / "labels.npy", np.array(labels), allow_pickle=False)
    return str(folder)


def test_images_and_their_labels_each_once_in_an_epoch(tmp_path: Path) -> None:
    dataset = open_dataset(DataConfig(source=write(tmp_path)), seed=2)
    assert dataset.windows == 5
    batch = dataset.batch(range(5))
    assert batch.inputs.shape == (5, 3, 2, 3)
    assert sorted(batch.targets.tolist()) == [7, 8, 9, 10, 11]
    for image_CHW, label in zip(batch.inputs, batch.targets, strict=True):
        assert (image_CHW.transpose(1, 2, 0) == IMAGES[label - 7]).all()
    assert dataset.target_count(range(3)) == 3


@pytest.mark.parametrize(
    ("images", "model", "message"),
    [
        (SQUARES, {"family": Family.LLAMA}, "model.family: llama takes text"),
        (SQUARES, {"image_size": 8}, r"images of shape \(8, 8, 3\), and those of .* \(4, 4, 3\)"),
        (SQUARES, {"classes": 11}, "labels go from 7 to 11, and the model knows 0 to 10"),
    ],
)
def test_a_model_that_cannot_take_them_is_refused(
    tmp_path: Path, images: object, model: dict[str, object], message: str
) -> None:
    dataset = open_dataset(DataConfig(source=write(tmp_path, images=images)), seed=2)
    fitting = {"family": Family.VIT, "image_size": 4, "patch_size": 2, "classes": 12}
    dataset.check_model(ModelConfig(**fitting))
    with pytest.raises(ConfigError, match=message):
        dataset.check_model(ModelConfig(**{**fitting, **model}))


def test_the_fingerprint_tells_labels_apart(tmp_path: Path) -> None:
    got = set()
    for labels in ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5), (1, 2, 3, 5, 4)):
        source = write(tmp_path, labels=labels)
        got.add(open_dataset(DataConfig(source=source), seed=0).fingerprint())
    assert len(got) == 2


def test_other_pixels_are_another_fingerprint_and_end_a_run_that_maps_them(tmp_path: Path) -> None:
    source = write(tmp_path)
    dataset = open_dataset(DataConfig(source=source), seed=0)
    before = dataset.fingerprint()
    dataset.batch(range(2))
    changed_at = (tmp_path / "images.npy").stat().st_mtime_ns + 1_000_000
    write(tmp_path, images=IMAGES[:, ::-1])
    os.utime(tmp_path / "images.npy", ns=(changed_at, changed_at))
    with pytest.raises(CorpusChangedError, match=r"images\.npy"):
        dataset.batch(range(2))
    assert open_dataset(DataConfig(source=source), seed=0).fingerprint() != before


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.astype(float), range(5), "must be uint8 of shape N H W C, not float64"),
        (IMAGES[0], range(5), r"not uint8 of shape \(2, 3, 3\)"),
        (IMAGES, range(4), "holds 5 images and 4 labels"),
        (IMAGES[:0], np.arange(0), "holds 0 images and 0 labels"),
        (IMAGES, np.linspace(0, 1, 5), "must be whole numbers of shape N"),
    ],
)
def test_what_are_no_labelled_images_is_refused(
    tmp_path: Path, images: object, labels: object, message: str
) -> None:
    source = write(tmp_path, images=images, labels=labels)
    with pytest.raises(ConfigError, match=message):
        open_dataset(DataConfig(source=source), seed=0)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    source = write(tmp_path)
    np.save(tmp_path / "labels.npy", np.array([{}] * 5, dtype=object))
    with pytest.raises(ConfigError, match=r"labels\.npy"):
        open_dataset(DataConfig(source=source), seed=0)
