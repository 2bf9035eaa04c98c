"""State that is away: the same updates bit for bit, and little memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drumline_contract.config import MemoryConfig, ModelConfig, Offload, OptimizerConfig
from drumline_contract.config import OptimizerKind as Kind
from drumline_contract.layout import Layout
from drumline_trainer.assembly.optimizer import build_optimizer
from drumline_trainer.memory.offload_store import FileStore, open_store
from drumline_trainer.memory.offloaded_optimizer import OffloadedOptimizer
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.initialize import initialize_slices
from drumline_trainer.optimization.optimizer import Optimizer
from drumline_trainer.sharding.boxes import Box
from drumline_trainer.sharding.slices import TensorSlice, slices_of
from drumline_trainer.sharding.storage import OffloadStore
from drumline_trainer.sharding.world import World
from tests.unit.trainer.memory.resident import resident

ALONE = World(layout=Layout(), rank=0, device=torch.device("cpu"))
MODEL = ModelConfig(layers=4, hidden_size=64, ffn_size=128, heads=2, kv_heads=2, vocab_size=256)
BUCKET = 64 * 128
"""Elements: the largest weight of a layer."""


def weights() -> list[TensorSlice]:
    slices = slices_of(build_on_meta(MODEL).to_empty(device="cpu"))
    initialize_slices(slices, config=MODEL, seed=0)
    return slices


def master_weights(slices: Sequence[TensorSlice], place: OffloadStore) -> list[TensorSlice]:
    """The same weights, as data parallelism keeps those it has a bf16 copy of."""
    moved = [
        replace(each_slice, tensor=place.empty(each_slice.shape, dtype=torch.float32), store=place)
        for each_slice in slices
    ]
    for moved_slice, other in zip(moved, slices, strict=True):
        moved_slice.tensor.copy_(other.tensor)
    return moved


def gradients(slices: Sequence[TensorSlice], step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(each_slice.shape, generator=generator) for each_slice in slices]


def trained(optimizer: Optimizer, slices: Sequence[TensorSlice]) -> dict[str, Tensor]:
    """All that belongs in a checkpoint after some steps, the first of them those of a restart."""
    optimizer.set_finished_steps(2)
    for each_slice in optimizer.slices():
        if each_slice.name.startswith("optimizer"):
            each_slice.tensor.fill_(0.25)
    for step in range(3):
        optimizer.update(gradients(slices, step), rate=0.01)
    return {each_slice.name: each_slice.tensor.clone() for each_slice in optimizer.slices()}


@pytest.mark.parametrize(
    ("kind", "where", "separate"),
    [
        (Kind.ADAMW, Offload.CPU, False),
        (Kind.ADAMW, Offload.NVME, True),
        (Kind.SGD, Offload.NVME, True),
        (Kind.MUON, Offload.CPU, True),
        (Kind.MUON, Offload.NVME, False),
    ],
)
def test_bits_are_those_of_the_optimizer_alone(
    kind: Kind, where: Offload, separate: bool, tmp_path: Path
) -> None:
    config = OptimizerConfig(kind=kind, average_decay=0.9)
    slices = weights()
    plain = trained(build_optimizer(slices, config, ALONE), slices)
    memory = MemoryConfig(offload_optimizer=where, offload_folder=str(tmp_path))
    place = functools.partial(open_store, where, memory, device=ALONE.device)
    slices = weights()
    if separate:
        slices = master_weights(
            slices, place(sizes=[each_slice.tensor.nbytes for each_slice in slices])
        )
    optimizer = OffloadedOptimizer(
        slices,
        build=functools.partial(build_optimizer, config=config, world=ALONE),
        open_store=lambda sizes: place(sizes=sizes),
        world=ALONE,
        bucket_elements=BUCKET,
    )
    away = trained(optimizer, slices)
    assert plain.keys() == away.keys()
    assert all(torch.equal(plain[name], away[name]) for name in plain)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("separate", [False, True])
def test_both_ends_of_a_pipeline_in_one_bucket_have_state_each(separate: bool) -> None:
    def trained_ends(*, offloaded: bool) -> list[tuple[str, int, Tensor]]:
        shape, box = (8, 4), Box(offsets=(0, 0), shape=(8, 4))
        slices = [
            TensorSlice(
                name="embedding.weight",
                shape=shape,
                box=box,
                tensor=torch.full(shape, 1.0),
                copies=2,
                copy=copy,
            )
            for copy in range(2)
        ]
        build = functools.partial(build_optimizer, config=OptimizerConfig(), world=ALONE)
        place = open_store(Offload.CPU, MemoryConfig(), sizes=[], device=ALONE.device)
        if offloaded and separate:
            slices = master_weights(slices, place)
        optimizer: Optimizer = build(slices)
        if offloaded:
            optimizer = OffloadedOptimizer(
                slices, build=build, open_store=lambda _: place, world=ALONE
            )
        for step in range(2):
            optimizer.update([gradients(slices, step)[0] * (1 + n) for n in range(2)], rate=0.01)
        return [
            (each_slice.name, each_slice.copy, each_slice.tensor)
            for each_slice in optimizer.slices()
        ]

    plain, away = trained_ends(offloaded=False), trained_ends(offloaded=True)
    assert [item[:2] for item in plain] == [item[:2] for item in away]
    assert all(torch.equal(a[2], b[2]) for a, b in zip(plain, away, strict=True))
    assert len({item[2].data_ptr() for item in away}) == len(away)


def test_three_buckets_have_memory_at_most(tmp_path: Path) -> None:
    made: list[TensorSlice] = []
    most = [0]

    def build(slices: Sequence[TensorSlice]) -> Optimizer:
        inner = build_optimizer(slices, OptimizerConfig(), ALONE)
        made.extend(
            each_slice for each_slice in inner.slices() if each_slice.name.startswith("optimizer")
        )
        return _Watched(inner, seen=lambda: most.append(held()))

    def held() -> int:
        return sum(item.tensor.untyped_storage().nbytes() for item in made)

    slices = weights()
    total = 8 * sum(each_slice.tensor.numel() for each_slice in slices)
    files: list[FileStore] = []

    def place(sizes: Sequence[int]) -> OffloadStore:
        files.append(FileStore(tmp_path, sizes=sizes))
        return files[0]

    optimizer = OffloadedOptimizer(
        slices, build=build, open_store=place, world=ALONE, bucket_elements=BUCKET
    )
    optimizer.update(gradients(slices, 0), rate=0.01)
    largest = 8 * 256 * 64  # the embedding
    assert 0 < max(most) <= 3 * largest < total / 2
    assert held() == 0
    whole = files[0].empty((0,), dtype=torch.uint8)
    assert resident(whole) == 0
    state = [
        each_slice.tensor
        for each_slice in optimizer.slices()
        if each_slice.name.startswith("optimizer")
    ]
    assert sum(item.count_nonzero().item() for item in state) > 0
    assert total <= resident(whole) <= 1.1 * total


class _Watched:
    def __init__(self, inner: Optimizer, *, seen: Callable[[], None]) -> None:
        self._inner, self._seen = inner, seen
        self.slices = inner.slices
        self.set_finished_steps = inner.set_finished_steps

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        self._seen()
        self._inner.update(gradients, rate=rate)
