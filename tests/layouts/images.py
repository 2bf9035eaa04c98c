"""Labelled images of the layouts' tests: noise around a brightness that tells the class."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from drumline_trainer.data.image_dataset import IMAGES_FILE, LABELS_FILE

CLASSES = 11
"""Odd, so that ranks of the tensor axis have unlike pieces of the head."""
IMAGES, SIDE, CHANNELS = 48, 8, 2


def write_images(folder: Path, *, side: int = SIDE) -> Path:
    """As arrays."""
    random = np.random.default_rng(3)
    labels = random.integers(0, CLASSES, IMAGES)
    noise = random.integers(0, 60, (IMAGES, side, side, CHANNELS))
    folder.mkdir()
    np.save(folder / IMAGES_FILE, (noise + 16 * labels[:, None, None, None]).astype(np.uint8))
    np.save(folder / LABELS_FILE, labels)
    return folder


def write_photos(folder: Path, *, side: int = SIDE) -> Path:
    """Encoded, a folder for each class."""
    random = np.random.default_rng(3)
    for label in range(CLASSES):
        (folder / f"class-{label:02}").mkdir(parents=True)
        for number in range(4):
            pixels = random.integers(0, 60, (2 * side, 3 * side, 3)) + 16 * label
            file = folder / f"class-{label:02}" / f"{number}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(file)
    return folder
