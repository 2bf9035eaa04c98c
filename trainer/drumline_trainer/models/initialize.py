"""Initial weights as a function of (seed, parameter name, global index) and nothing else.

Each element's random number is a counter-based hash (the finalizer of SplitMix64) of a key made of
seed and name, and of the element's flat index in the global tensor. A rank computes exactly its own
elements, so any number of ranks, any sharding and any device make bitwise the same global weights,
and no rank ever holds a full tensor.

Bitwise holds because every step is exactly rounded arithmetic: vectorized logarithms or sines may
differ in the last bit by position in memory. So the normal distribution comes from a table of
quantiles with linear interpolation, cut at 3.8 standard deviations as is usual for truncated
normal initialization.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice, slices_of

_GOLDEN = 0x9E3779B97F4A7C15
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_TABLE_BITS = 13
_CHUNK_ELEMENTS = 1 << 20
"""Temporaries of int64 and fp64 stay below ~50 MB whatever the size of the shard."""


def initialize(model: nn.Module, *, seed: int) -> None:
    """Fill every parameter of a model that nothing has cut.

    Raises:
        TypeError: the module has no configuration.
    """
    config = model.config
    if not isinstance(config, ModelConfig):
        raise TypeError("a model knows its configuration")
    initialize_slices(slices_of(model), config=config, seed=seed)


def initialize_slices(slices: Iterable[TensorSlice], *, config: ModelConfig, seed: int) -> None:
    """Fill whatever parts of the weights this rank holds, however they were cut.

    Args:
        slices: this rank's parts of the weights.
        config: shape of the model.
        seed: seed of the run.
    """
    for part in slices:
        # The start depends on the name only. A renamed layer would begin with other weights.
        start = initial_values(part.name, config)
        if isinstance(start, Normal):
            fill_normal(
                part.tensor,
                box=part.box,
                name=part.name,
                # The global shape and the box give each element its global index.
                shape=part.shape,
                seed=seed,
                std=start.std,
            )
        else:
            part.tensor.fill_(start)


@dataclass(frozen=True, slots=True)
class Normal:
    """Values around 0 with this standard deviation."""

    std: float


def initial_values(name: str, config: ModelConfig) -> Normal | float:
    """Return the initial distribution of a weight by its name.

    Biases and corrections are 0, norms are 1, all others normal. Standard deviations follow GPT-2
    and Llama: 0.02 for embeddings and projections, scaled by 1 / sqrt(2 · layers) if a projection
    writes to the residual stream.
    """
    # A parameter without ".weight" at its end keeps its whole name, such as `experts.down`.
    *parents, module = name.removesuffix(".weight").split(".")
    # Corrections of mixtures begin at 0: no expert is preferred.
    if module.endswith(("bias", "correction")):
        return 0.0
    if module.endswith("norm"):
        return 1.0
    # `layers` excludes the head, which is called `output` too.
    if "layers" in parents and module in ("output", "down"):
        return Normal(0.02 / (2 * config.layers) ** 0.5)
    return Normal(0.02)


def fill_normal(
    shard: Tensor, *, box: Box, name: str, shape: tuple[int, ...], seed: int, std: float
) -> None:
    """Fill the part `box` of a tensor of `shape` with its normal values. Any device and type.

    Args:
        shard: storage to fill.
        box: part of the whole tensor.
        name: name of the tensor.
        shape: shape of the whole tensor.
        seed: seed of the run.
        std: standard deviation.
    """
    # The table is fp64, and only the final value is rounded to the type of the weight.
    table = _quantiles().to(shard.device)
    # A view of contiguous memory is filled in place. Other layouts are filled in a buffer and
    # copied.
    flat = shard.view(-1) if shard.is_contiguous() else shard.new_empty(shard.numel())
    # Chunks bound the temporaries. They do not change a value, because each element has its own
    # index.
    for start in range(0, flat.numel(), _CHUNK_ELEMENTS):
        stop = min(start + _CHUNK_ELEMENTS, flat.numel())
        positions = torch.arange(start, stop, dtype=torch.int64, device=shard.device)
        bits = _hash(_global_index(positions, box, shape), key=_key(seed, name))
        flat[start:stop] = (_normal(bits, table) * std).to(shard.dtype)
    if not shard.is_contiguous():
        shard.copy_(flat.view(shard.shape))


def _global_index(positions: Tensor, box: Box, shape: tuple[int, ...]) -> Tensor:
    """Map flat positions in the box to flat indices in the global tensor."""
    # Mixed radix: the last dimension varies fastest. `positions % size` is the coordinate in the
    # box.
    index = torch.zeros_like(positions)
    stride = 1
    for offset, size, whole in zip(
        reversed(box.offsets), reversed(box.shape), reversed(shape), strict=True
    ):
        index += (positions % size + offset) * stride
        positions = positions // size
        stride *= whole
    return index


def _key(seed: int, name: str) -> int:
    # The separator prevents that seed 1 with name "2x" equals seed 12 with name "x".
    digest = hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def _hash(index: Tensor, *, key: int) -> Tensor:
    """Apply SplitMix64's finalizer to key + index · golden ratio; int64 products wrap."""
    # torch has no uint64 arithmetic on all devices. Products of int64 wrap to the same bits.
    x = index * _signed(_GOLDEN) + _signed(key)
    x = (x ^ _shift_right(x, 30)) * _signed(_MIX_1)
    x = (x ^ _shift_right(x, 27)) * _signed(_MIX_2)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift logically: torch's own shift of a negative int64 drags the sign along."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Return the int64 with the bits of an unsigned 64-bit number."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _normal(bits: Tensor, table: Tensor) -> Tensor:
    """Turn 64 random bits into fp64 standard normals, interpolated between quantiles."""
    # The upper 13 bits choose a cell, and 43 lower bits the place in it. They do not overlap.
    cell = _shift_right(bits, 64 - _TABLE_BITS)
    fraction = (_shift_right(bits, 8) & ((1 << 43) - 1)).double() * 2.0**-43
    # A difference, a product and a sum are separate operations, each rounded exactly on every
    # device.
    low = table[cell]
    return low + fraction * (table[cell + 1] - low)


@functools.cache
def _quantiles() -> Tensor:
    """Tabulate normal quantiles at 2^13 + 1 points, the ends pulled in by half a cell."""
    cells = 1 << _TABLE_BITS
    # The outermost points would be infinite. Half a cell further in lies 3.8 standard deviations.
    points = [min(max(i / cells, 0.5 / cells), 1 - 0.5 / cells) for i in range(cells + 1)]
    # Python computes quantiles on the host in fp64. A device's own function could differ in the
    # last bits.
    normal = NormalDist()
    return torch.tensor([normal.inv_cdf(point) for point in points], dtype=torch.float64)
