"""Sources of encoded images: a folder for each class, or tars of WebDataset.

    /data/photos/cat/001.jpg           the class is the folder; classes are numbered by their names
    /data/photos/dog/a/002.png         in order, cat 0 and dog 1

    /data/shards/train-000.tar         members 0007.jpg and 0007.cls are a sample: members in a row
                                       whose names agree up to the first dot; .cls is its number

Only the place of each image is kept, in 24 bytes. Opening reads the headers of all tars, but no
image.
"""

from __future__ import annotations

import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError
from drumline_trainer.data.corpus import Corpus, corpus_of_files, is_hidden
from drumline_trainer.data.splits import TRAINING, split_named
from drumline_trainer.data.tar_samples import TAR_SUFFIX, TarSample, ending, tar_samples

IMAGE_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".webp")
_OTHER_IMAGES: Final = (
    *(".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"),
    *(".avif", ".heic", ".heif", ".jfif", ".jp2"),
)
"""Suffixes of images that are not read."""
_LABEL: Final = ".cls"
_MAX_LABEL_BYTES: Final = 20
_MAX_IMAGE_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageFiles:
    """The place and the class of every image.

    Shapes: N images.
    """

    corpus: Corpus
    """The files, which are images or tars, end to end."""
    starts: npt.NDArray[np.int64]
    """Offset of each image in the corpus, int64 [N]."""
    sizes: npt.NDArray[np.int64]
    """In bytes, of shape N."""
    labels: npt.NDArray[np.int64]
    """Class of each image, int64 [N]."""
    classes: tuple[str, ...] = ()
    """Names by number, where folders name them."""
    left_out: tuple[str, ...] = ()
    """Paths of images that are not read: empty, of another format, or in no folder of a class."""

    def read(self, index: int) -> bytes:
        """Return one image as it is encoded.

        Raises:
            CorpusChangedError: its file vanished or was written to.
        """
        return self.corpus.read(int(self.starts[index]), int(self.sizes[index]))

    def name(self, index: int) -> str:
        """Return the path of the image's file, for messages."""
        # The same lookup as in `Corpus.read`: the first file that ends behind the image's start.
        number = bisect_right(self.corpus.ends, int(self.starts[index]))
        return str(self.corpus.folder / self.corpus.paths[number])


def holds_image_files(source: Path) -> bool:
    """Return whether this is a tar, a folder of tars, or a folder of folders of images."""
    if source.suffix == TAR_SUFFIX:
        return source.is_file()
    if not source.is_dir():
        return False
    # Sorted, so that every rank takes the same branch for the same folder.
    entries = _visible(source)
    if any(path.suffix == TAR_SUFFIX for path in entries):
        return True
    # `next` stops at the first image. A folder may hold millions of files.
    return any(path.is_dir() and next(_images_below(path), None) is not None for path in entries)


def list_image_files(source: Path) -> ImageFiles:
    """List a tar, the tars of a folder, or the images in its folders.

    Raises:
        ConfigError: a tar is damaged, a sample has no image or no class, or there is no image.
    """
    if source.suffix == TAR_SUFFIX:
        return _of_tars(source.parent, [source])
    # Tars go first: a folder with tars and class folders is a WebDataset with other files beside
    # it.
    tars = [path for path in _visible(source) if path.suffix == TAR_SUFFIX]
    return _of_tars(source, tars) if tars else _of_folders(source)


def _visible(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if not is_hidden(path.relative_to(folder)))


def _images_below(folder: Path, *, suffixes: Sequence[str] = IMAGE_SUFFIXES) -> Iterator[Path]:
    return (
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in suffixes and not is_hidden(path.relative_to(folder))
    )


def _of_folders(folder: Path) -> ImageFiles:
    # Classes are numbered by sorted names, as torchvision's ImageFolder numbers them.
    entries, every = _visible(folder), (*IMAGE_SUFFIXES, *_OTHER_IMAGES)
    classes = [path.name for path in entries if path.is_dir()]
    _refuse_splits(folder, classes)
    left_out = [path for path in entries if path.is_file() and path.suffix.lower() in every]
    paths: list[Path] = []
    labels: list[int] = []
    for number, name in enumerate(classes):
        # Empty files are left out here, because `corpus_of_files` drops them and labels must stay
        # aligned with paths.
        pictures = sorted(_images_below(folder / name, suffixes=every))
        images = [
            path
            for path in pictures
            if path.suffix.lower() in IMAGE_SUFFIXES and path.stat().st_size
        ]
        # An empty folder is usually a mistake, and the model would have a class that it cannot
        # learn.
        if not images:
            raise ConfigError(
                f"data.source: {folder / name} is the folder of a class and holds no image"
                f" ({', '.join(IMAGE_SUFFIXES)})"
            )
        paths += images
        left_out += sorted({*pictures} - {*images})
        labels += [number] * len(images)
    corpus = corpus_of_files(folder, paths)
    ends = np.array(corpus.ends, dtype=np.int64)
    # Each image is a file, so it starts at the end of the previous one.
    starts = np.roll(ends, 1)
    starts[0] = 0
    return ImageFiles(
        corpus=corpus,
        starts=starts,
        sizes=ends - starts,
        labels=np.array(labels, dtype=np.int64),
        classes=tuple(classes),
        left_out=tuple(str(path.relative_to(folder)) for path in left_out),
    )


def _refuse_splits(folder: Path, names: Sequence[str]) -> None:
    """Raise ConfigError if the folders are those of splits, with the classes below them."""
    if names and all(map(split_named, names)):
        split = next((name for name in names if split_named(name) == TRAINING), names[0])
        if any(path.is_dir() for path in _visible(folder / split)):
            raise ConfigError(
                f"data.source: {folder} has the folders of splits ({', '.join(names)}), not of"
                f" classes; name one of them, such as {folder / split}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    start: int
    size: int
    label: int


def _of_tars(folder: Path, tars: Sequence[Path]) -> ImageFiles:
    corpus = corpus_of_files(folder, tars)
    # `ends` has one entry more than needed once 0 is prepended, so `zip` is not strict.
    begins = dict(zip(corpus.paths, (0, *corpus.ends), strict=False))
    samples = [
        _located(sample, begin=begins[path.name])
        for path in tars
        # An empty tar has no place in the corpus.
        if path.name in begins
        for sample in tar_samples(path)
    ]
    if not samples:
        raise ConfigError(f"data.source: {folder} holds no image in its tars")
    return ImageFiles(
        corpus=corpus,
        starts=np.array([sample.start for sample in samples], dtype=np.int64),
        sizes=np.array([sample.size for sample in samples], dtype=np.int64),
        labels=np.array([sample.label for sample in samples], dtype=np.int64),
    )


def _located(sample: TarSample, *, begin: int) -> _Sample:
    """Return the sample's place, in a tar whose first byte is at `begin`.

    Raises:
        ConfigError: it lacks an image or a class, or is too large.
    """
    image, label = _member(sample, IMAGE_SUFFIXES), _member(sample, (_LABEL,))
    if image is None or label is None:
        kind = "an image" if image is None else f"its class ({_LABEL})"
        raise ConfigError(f"data.source: {sample.path}: sample {sample.key} lacks {kind}")
    # The size comes from the tar header. A damaged header must not allocate gigabytes.
    if not 0 < image.size <= _MAX_IMAGE_BYTES:
        raise ConfigError(
            f"data.source: {sample.path}: {image.name} has {image.size} bytes; an image has 1 to"
            f" {_MAX_IMAGE_BYTES}"
        )
    return _Sample(start=begin + image.offset_data, size=image.size, label=_label(sample, label))


def _member(sample: TarSample, suffixes: Sequence[str]) -> tarfile.TarInfo | None:
    """Return the member KEY.jpg, before one such as KEY.mask.jpg. None: there is neither.

    The order of the suffixes decides if a sample has several.

    Raises:
        ConfigError: it is not clear which of two members is meant.
    """
    named = ([each for each in sample.members if ending(each) == suffix] for suffix in suffixes)
    longer = [each for each in sample.members if ending(each).endswith(tuple(suffixes))]
    members = next(filter(None, named), longer)
    if len(members) > 1:
        raise ConfigError(
            f"data.source: {sample.path}: sample {sample.key} has {members[0].name} and"
            f" {members[1].name}; keep one of them, or name one with a single suffix"
        )
    return members[0] if members else None


def _label(sample: TarSample, member: tarfile.TarInfo) -> int:
    # At most 20 bytes are read: the largest int64 has 19 digits.
    text = sample.content(member, most=_MAX_LABEL_BYTES)
    if not text.strip().isdigit():
        raise ConfigError(
            f"data.source: {sample.path}: {member.name} must be a whole number, not {text!r}"
        )
    return int(text)
