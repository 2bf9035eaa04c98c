"""Load the weights of a folder on all ranks. Each slice is read once for all ranks that hold it.

Collective over all ranks of the default group. A digest of the slices identifies ranks that hold
the same slices: copies of the model, or of a part of it. They share the reads evenly by bytes, and
send what they read to the other holders in rounds (`sharding.exchange`).

Without GPUs, each rank of one pod reads a folder for itself (see `sharding.page_cache`).

Example: two copies, each cut over two ranks. Ranks 0 and 2 hold the same, and each reads half of it
for both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_contract.buckets.path import AnyPath
from drumline_contract.config import ModelConfig
from drumline_contract.shapes.hugging_face import HuggingFaceError
from drumline_trainer.models.hugging_face.exchange import load_hugging_face
from drumline_trainer.sharding.byte_collectives import Rejected, gather_bytes
from drumline_trainer.sharding.exchange import BLOCK_BYTES, exchange
from drumline_trainer.sharding.exchange_rounds import SharedRows, Tag
from drumline_trainer.sharding.page_cache import page_cache
from drumline_trainer.sharding.slices import TensorSlice


def load_for_copies(
    folder: AnyPath,
    slices: Sequence[TensorSlice],
    *,
    config: ModelConfig,
    device: torch.device,
    progress: Callable[[], None] = lambda: None,
) -> frozenset[str]:
    """Load Hugging Face weights on all ranks. Weights that several ranks hold are read once.

    Args:
        folder: folder of the weights.
        slices: what this rank holds.
        config: configuration of the model.
        device: device of the tensors that travel.
        progress: called between two weights.

    Returns:
        The result of `load_hugging_face`.

    Raises:
        HuggingFaceError: one rank cannot load the weights. All ranks raise it.
    """
    cache = page_cache(of_folder=isinstance(folder, Path), device=device)
    shared = _SharedReading.of(slices, cache=cache, device=device)
    absent = frozenset[str]()
    refusal: HuggingFaceError | None = None

    def outgoing() -> Iterator[SharedRows]:
        nonlocal absent, refusal
        own = [part for part, read in zip(slices, shared.read_here, strict=True) if read]
        try:
            absent = load_hugging_face(folder, own, config=config, progress=progress)
        except HuggingFaceError as error:
            refusal = error
            raise
        for number, part in enumerate(slices):
            if shared.receivers[number] and part.name not in absent:
                yield from _blocks(part.tensor.detach(), number, ranks=shared.receivers[number])

    def receive(tag: Tag, row: int, data: Tensor) -> None:
        progress()
        number, _, _ = tag
        tensor = slices[number].tensor.detach()
        values = data.view(tensor.dtype)
        if not tensor.dim():
            tensor.copy_(values.view(()))
            return
        values = values.view(-1, *tensor.shape[1:])
        tensor[row : row + len(values)].copy_(values)

    outcome = exchange(
        outgoing(), receive=receive, refusals=(HuggingFaceError,), device=device, progress=progress
    )
    if isinstance(outcome, Rejected):
        raise refusal or HuggingFaceError(outcome.reason)
    return absent


@dataclass(frozen=True, slots=True, kw_only=True)
class _SharedReading:
    """Assignment of a rank's slices to the ranks that read them."""

    read_here: Sequence[bool]
    """True for each slice that this rank reads."""
    receivers: Sequence[tuple[int, ...]]
    """Ranks that this rank sends each slice to."""

    @classmethod
    def of(
        cls, slices: Sequence[TensorSlice], *, cache: str | None, device: torch.device
    ) -> _SharedReading:
        """Agree on the reader of each slice. Collective over all ranks."""
        held = [(part.name, part.box.offsets, part.box.shape) for part in slices]
        digest = hashlib.sha256(json.dumps(held).encode()).hexdigest()
        rows = gather_bytes(json.dumps([digest, cache]).encode(), device=device)
        answers: list[tuple[str, str | None]] = [json.loads(row) for row in rows]
        own = dist.get_rank()
        alike = [rank for rank, (other, _) in enumerate(answers) if other == digest]
        loads = dict.fromkeys(alike, 0)
        read_here: list[bool] = []
        receivers: list[tuple[int, ...]] = []
        for part in slices:
            reader = min(alike, key=lambda rank: (loads[rank], rank))
            near = [rank for rank in alike if cache and answers[rank][1] == answers[reader][1]]
            reading = {reader, *near}
            for rank in reading:
                loads[rank] += part.box.elements
            read_here.append(own in reading)
            far = tuple(rank for rank in alike if rank not in reading)
            receivers.append(far if own == reader else ())
        return cls(read_here=read_here, receivers=receivers)


def _blocks(tensor: Tensor, number: int, *, ranks: tuple[int, ...]) -> Iterator[SharedRows]:
    if not tensor.dim():
        yield SharedRows.of(tensor, tag=(number, 0, 0), ranks=ranks)
        return
    row_bytes = max(1, tensor.nbytes // max(1, len(tensor)))
    step = max(1, BLOCK_BYTES // row_bytes)
    for row in range(0, len(tensor), step):
        yield SharedRows.of(tensor[row : row + step], tag=(number, 0, 0), ranks=ranks, first=row)
