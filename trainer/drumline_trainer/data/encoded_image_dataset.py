"""Images that are decoded, cut and brought to the model's size as they are needed.

Needs Pillow. What is shown of an image is `data.augmentation`'s; the order and the cursor work as
for text, an image is a window. Some threads decode the samples of a batch, as Pillow computes
without Python's lock.
"""

from __future__ import annotations

import hashlib
import io
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from drumline_contract.config import ConfigError, ModelConfig
from drumline_contract.config.data import Augmentation
from drumline_contract.config.variants import Family
from drumline_trainer.data.dataset import Batch, Dataset
from drumline_trainer.data.image_files import IMAGE_SUFFIXES, ImageFiles, list_image_files

_FORMATS: Final = ("JPEG", "PNG", "WEBP")
_MAX_PIXELS: Final = 100_000_000
_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
"""Pillow's, by the number of channels."""
_THREADS: Final = 8
_ORIENTATION: Final = 0x0112
"""EXIF's tag: how a camera was held."""
_UPRIGHT: Final = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
"""Pillow's transposition that sets a picture upright, by its orientation."""


class UnreadableImageError(ConfigError):
    """An image that cannot be decoded. A retry does not help."""


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedImageDataset(Dataset):
    """Images and their classes in the run's order.

    Shapes: B samples, C channels, I side of an image.
    """

    files: ImageFiles
    image_size: int
    """I: what every image is brought to."""
    channels: int
    augmentation: Augmentation = Augmentation.NONE
    pool: ThreadPoolExecutor = field(default_factory=_threads)

    @property
    def windows(self) -> int:
        """Images in one epoch."""
        return len(self.files.labels)

    def batch(self, samples: range) -> Batch:
        """Return images [batch, channels, height, width] and labels [batch].

        Raises:
            CorpusChangedError: a file vanished or was written to.
            UnreadableImageError: one cannot be decoded.
        """
        # `map` returns results in the order of the samples, so threads do not change the batch.
        images = list(self.pool.map(self._image, samples))
        windows = [self.window_at(sample) for sample in samples]
        return Batch(inputs=np.stack(images), targets=self.files.labels[windows])

    def target_count(self, samples: range) -> int:
        """Count one target per image."""
        return len(samples)

    def fingerprint(self) -> str:
        """Digest of names, sizes, content and classes; of more than 256 MiB samples of content."""
        # Starts and labels are part of the digest. Bytes of tars can stay equal while the listing
        # rules change.
        digest = hashlib.sha256(self.files.corpus.fingerprint().encode())
        # Little-endian on all hosts: a run may resume on another architecture.
        for values in (self.files.starts, self.files.labels):
            digest.update(values.astype("<i8").tobytes())
        return digest.hexdigest()[:32]

    def check_model(self, model: ModelConfig) -> None:
        """Raise ConfigError for models of text and of too few classes."""
        if model.family is not Family.VIT:
            raise ConfigError(f"model.family: {model.family} takes text, and data.source is images")
        high = int(self.files.labels.max())
        if high >= model.classes:
            raise ConfigError(
                f"model.classes: the classes of data.source go up to {high}, and the model knows 0"
                f" to {model.classes - 1}"
            )

    def prefetch(self, samples: range) -> None:
        """Do nothing: the operating system reads ahead."""

    def close(self) -> None:
        """End the threads."""
        self.pool.shutdown(wait=False, cancel_futures=True)

    def class_names(self) -> tuple[str, ...]:
        """Return the classes of the folders."""
        return self.files.classes

    def notes(self) -> tuple[str, ...]:
        """Describe the number of each class if folders name them, and images that are not read.

        If there are many classes, only the first and last.
        """
        names = self.files.classes
        if not names:
            return ()
        shown = [f"{number} {name}" for number, name in enumerate(names)]
        if len(shown) > 8:
            shown = [*shown[:4], "...", *shown[-2:]]
        classes = f"{len(names)} classes: {', '.join(shown)}"
        left_out = self.files.left_out
        if not left_out:
            return (classes,)
        note = (
            f"left out: {len(left_out)} images, the first {left_out[0]}: images are"
            f" {', '.join(IMAGE_SUFFIXES)}, not empty, and in the folder of a class"
        )
        return (classes, note)

    def _image(self, sample: int) -> npt.NDArray[np.uint8]:
        """Decode one image, uint8 of shape [channels, height, width]."""
        index = self.window_at(sample)
        # Phase 1: decode. The error names file and index, because a tar has many images.
        try:
            picture = _decoded(self.files.read(index), mode=_MODES[self.channels])
        except UnreadableImageError as error:
            raise UnreadableImageError(
                f"data.source: {self.files.name(index)}, image {index}: {error}"
            ) from error
        # Evaluation never crops at random, so held-out losses of two steps are comparable.
        random = self.augmentation is Augmentation.CROP_AND_MIRROR and not self.evaluates
        crop = (
            # The crop depends on seed and sample number only. A restart or another number of ranks
            # shows the same pixels.
            random_crop(*picture.size, seed=self.seed, sample=sample)
            if random
            else central_crop(*picture.size)
        )
        side = (self.image_size, self.image_size)
        # Pillow crops and resizes in one call, without a copy of the crop. The result is [I, I, C],
        # or [I, I] for one channel.
        pixels_IIC = np.asarray(picture.resize(side, box=crop.box), dtype=np.uint8)
        pixels_IIC = pixels_IIC.reshape(*side, self.channels)
        if crop.mirrored:
            pixels_IIC = pixels_IIC[:, ::-1]
        # Channels first, as the model takes them. The copy makes `np.stack` read contiguous memory.
        return np.ascontiguousarray(pixels_IIC.transpose(2, 0, 1))


def _decoded(content: bytes, *, mode: str) -> Any:
    """Decode an image with Pillow, upright, after a check of its size.

    Raises:
        UnreadableImageError: it cannot be decoded, or has too many pixels.
    """
    from PIL import Image  # noqa: PLC0415 - optional package

    try:
        # `open` reads only the header. Fewer formats are fewer decoders that untrusted bytes can
        # reach.
        picture = Image.open(io.BytesIO(content), formats=_FORMATS)
        pixels = picture.width * picture.height
        # A small file can declare a huge image. The limit of 100 million pixels is checked before
        # memory is allocated.
        if pixels <= _MAX_PIXELS:
            converted = _of_8_bits(picture).convert(mode)
            turn = _UPRIGHT.get(_orientation(picture))
            return converted if turn is None else converted.transpose(Image.Transpose[turn])
    # Pillow raises SyntaxError for damaged PNG files.
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        formats = ", ".join(_FORMATS)
        raise UnreadableImageError(f"no {formats} that can be decoded: {error}") from error
    raise UnreadableImageError(f"{pixels} pixels are more than {_MAX_PIXELS}")


def _of_8_bits(picture: Any) -> Any:
    """Return a gray picture of 16 bits with the high byte of each pixel, and others as they are.

    Pillow would make all values above 255 white. It reads colors of 16 bits by their high byte.
    """
    from PIL import Image  # noqa: PLC0415 - optional package

    if not picture.mode.startswith("I"):
        return picture
    return Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))


def _orientation(picture: Any) -> int:
    """Return the orientation of a decoded picture; 1 is upright.

    transformers and datasets turn pictures by it too.
    """
    try:
        return picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # noqa: BLE001 - damaged EXIF fails in many ways, and the pixels are whole
        return 1


def open_image_files(
    source: Path, *, model: ModelConfig, augmentation: Augmentation, seed: int
) -> EncodedImageDataset:
    """List the images; they are decoded as they are asked for.

    Args:
        source: folder with a subfolder for each class.
        model: image size and channels.
        augmentation: random crops and flips.
        seed: seed of order and augmentation.

    Raises:
        ConfigError: as `list_image_files`; Pillow is missing; the model has other channels than
            grey, colours, or colours and alpha.
    """
    # `find_spec` does not import Pillow, so a run without images does not load it.
    if find_spec("PIL") is None:
        raise ConfigError(
            "data.source: images need the package pillow; install drumline[trainer-more]"
        )
    if model.channels not in _MODES:
        raise ConfigError(f"model.channels: images have 1, 3 or 4, not {model.channels}")
    return EncodedImageDataset(
        seed=seed,
        files=list_image_files(source),
        image_size=model.image_size,
        channels=model.channels,
        augmentation=augmentation,
    )


_LEAST_AREA: Final = 0.08
_WIDEST: Final = 4 / 3
_TRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Crop:
    """A part of an image, in its pixels."""

    left: int
    top: int
    width: int
    height: int
    mirrored: bool = False

    @property
    def box(self) -> tuple[int, int, int, int]:
        """Left, top, right, bottom."""
        return self.left, self.top, self.left + self.width, self.top + self.height


def central_crop(width: int, height: int) -> Crop:
    """Return the largest square in the middle of an image."""
    side = min(width, height)
    return Crop(left=(width - side) // 2, top=(height - side) // 2, width=side, height=side)


def random_crop(width: int, height: int, *, seed: int, sample: int) -> Crop:
    """Return a random part of an image. It is the middle if none of ten tries fits.

    Args:
        width: width of the image, in pixels.
        height: height of the image, in pixels.
        seed: seed of the run.
        sample: number of the sample in the run.
    """
    # Philox is counter based: the key is the state. Seed and sample fill the 128 bits without
    # overlap.
    random = np.random.Generator(np.random.Philox(key=(seed % 2**64) << 64 | sample))
    # Drawn before the crops. The number of tries must not change it.
    mirrored = bool(random.random() < 0.5)
    for _ in range(_TRIES):
        area = width * height * random.uniform(_LEAST_AREA, 1)
        # The shape is uniform in its logarithm: 3:4 and 4:3 are equally likely. torchvision's
        # RandomResizedCrop does the same.
        shape = math.exp(random.uniform(-math.log(_WIDEST), math.log(_WIDEST)))
        wide, high = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        # A crop may be larger than the image for extreme shapes. Then the next try draws again.
        if 0 < wide <= width and 0 < high <= height:
            return Crop(
                left=int(random.integers(width - wide, endpoint=True)),
                top=int(random.integers(height - high, endpoint=True)),
                width=wide,
                height=high,
                mirrored=mirrored,
            )
    return replace(central_crop(width, height), mirrored=mirrored)
