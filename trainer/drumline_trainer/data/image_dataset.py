"""Labelled images for the vision encoder: a folder with `images.npy` and `labels.npy`.

Images are uint8 of shape N H W C, labels whole numbers of shape N; both are memory-mapped. The
order and the cursor work as for text: an image is a window.
"""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError, ModelConfig
from drumline_contract.config.variants import Family
from drumline_contract.regular_files import open_regular
from drumline_trainer.data.contents import content_digest
from drumline_trainer.data.corpus import CorpusChangedError
from drumline_trainer.data.dataset import Batch, Dataset

IMAGES_FILE = "images.npy"
LABELS_FILE = "labels.npy"


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedFile:
    """A file as it was when it was mapped."""

    path: Path
    size: int
    modified: int
    """In nanoseconds."""

    @classmethod
    def of(cls, path: Path) -> MappedFile:
        """Record size and time of a file.

        Raises:
            ConfigError: it cannot be read.
        """
        try:
            status = path.stat()
        except OSError as error:
            raise ConfigError(f"data.source: {path}: {error.strerror}") from error
        return cls(path=path, size=status.st_size, modified=status.st_mtime_ns)

    def check(self) -> None:
        """Raise CorpusChangedError if it has changed."""
        try:
            status = self.path.stat()
        except OSError as error:
            raise CorpusChangedError(f"{self.path}: {error.strerror}") from error
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
            raise CorpusChangedError(f"{self.path}: changed since the run began")

    def digest(self) -> str:
        """Return the digest of its content."""
        return _digest_of_file(self)


@functools.lru_cache(maxsize=4)
def _digest_of_file(mapped: MappedFile) -> str:
    """Return a digest that is kept: every checkpoint asks for it."""
    with open_regular(mapped.path, buffering=0) as file:

        def read(start: int, length: int) -> bytes:
            # `pread` takes an offset and moves no shared file position.
            return os.pread(file.fileno(), length, start)

        return content_digest(read, size=mapped.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDataset(Dataset):
    """Images and their labels in the run's order.

    Shapes: N images, B samples, C channels, H height, W width.
    """

    images: npt.NDArray[np.uint8]
    """Pixels, uint8 [N, H, W, C]."""
    labels: npt.NDArray[np.integer[Any]]
    files: tuple[MappedFile, ...] = ()
    """Watched: a map shows other pixels once its file is written to."""

    @property
    def windows(self) -> int:
        """Images in one epoch."""
        return len(self.labels)

    def batch(self, samples: range) -> Batch:
        """Return images [batch, channels, height, width] and labels [batch].

        Raises:
            CorpusChangedError: a file was replaced or written to.
        """
        # A map has no error for a changed file. Size and time are compared once per batch, before
        # its pixels are read.
        for file in self.files:
            file.check()
        windows = [self.window_at(sample) for sample in samples]
        return Batch(
            # Indexing copies [B, H, W, C] out of the map. The model takes channels first, and a
            # contiguous copy moves to the GPU at once.
            inputs=np.ascontiguousarray(self.images[windows].transpose(0, 3, 1, 2)),
            # Labels may be any integer type. Cross entropy takes int64.
            targets=self.labels[windows].astype(np.int64),
        )

    def target_count(self, samples: range) -> int:
        """Count one target per image."""
        return len(samples)

    def fingerprint(self) -> str:
        """Digest of labels, shape and pixels; of more than 256 MiB the pixels count by samples."""
        # Shape and labels are hashed in full. Pixels are hashed by their file, sampled above 256
        # MiB.
        digest = hashlib.sha256(f"{self.images.shape}\n".encode())
        digest.update(self.labels.astype("<i8").tobytes())
        for file in self.files:
            digest.update(file.digest().encode())
        return digest.hexdigest()[:32]

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError for models of text, of other image shapes and of too few classes."""
        if model.family is not Family.VIT:
            raise ConfigError(f"model.family: {model.family} takes text, and data.source is images")
        taken = (model.image_size, model.image_size, model.channels)
        # Images are not resized here: arrays come from a preprocessing that chose their size.
        if self.images.shape[1:] != taken:
            raise ConfigError(
                f"model.image_size: the model takes images of shape {taken}, and those of"
                f" data.source have {self.images.shape[1:]}"
            )
        # Labels are checked once at the start. A label out of range would fail in a kernel, without
        # the number in the message.
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= model.classes:
            raise ConfigError(
                f"model.classes: the labels go from {low} to {high}, and the model knows 0 to"
                f" {model.classes - 1}"
            )

    def prefetch(self, samples: range) -> None:
        """Do nothing: the operating system reads ahead."""

    def close(self) -> None:
        """Do nothing: the maps are closed with the dataset."""


def holds_images(folder: Path) -> bool:
    """Return whether the folder holds labelled images."""
    return (folder / IMAGES_FILE).is_file() and (folder / LABELS_FILE).is_file()


def open_images(folder: Path, *, seed: int) -> ImageDataset:
    """Map both files.

    Raises:
        ConfigError: a file is damaged, or there are not as many labels as images.
    """
    images, labels = _mapped(folder / IMAGES_FILE), _mapped(folder / LABELS_FILE)
    # Only the headers were read so far. Wrong types are rejected before a page of pixels is loaded.
    if images.ndim != 4 or images.dtype != np.uint8:
        raise ConfigError(
            f"data.source: {folder / IMAGES_FILE} must be uint8 of shape N H W C, not"
            f" {images.dtype} of shape {images.shape}"
        )
    # "iu": signed and unsigned integers. Floating labels would be truncated silently.
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ConfigError(f"data.source: {folder / LABELS_FILE} must be whole numbers of shape N")
    if len(images) != len(labels) or not len(labels):
        raise ConfigError(
            f"data.source: {folder} holds {len(images)} images and {len(labels)} labels"
        )
    files = tuple(MappedFile.of(folder / name) for name in (IMAGES_FILE, LABELS_FILE))
    return ImageDataset(seed=seed, images=images, labels=labels, files=files)


def _mapped(file: Path) -> npt.NDArray[Any]:
    try:
        open_regular(file).close()  # a pipe would keep numpy waiting
        # `allow_pickle=False`: an untrusted file must not run code.
        return np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"data.source: {file} is not an array: {error}") from error
