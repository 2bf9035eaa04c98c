"""The part of an image that a sample shows, a function of the seed and the sample's number.

So a restart shows the same parts, on any number of ranks, and each epoch shows other ones. Crops of
a random size and shape are those of Szegedy et al. 2015: 8 to 100 % of the area, sides from 3:4 to
4:3. Half of them are mirrored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

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
