"""ZeRO-1 and ZeRO-2: all weights on every rank, each rank updates its own rows of them.

Rajbhandari et al. 2020. The optimizer's state, and with a low precision the fp32 weights, exist
once in the group: every parameter is cut by rows. A reduce-scatter gives each rank the summed
gradient of its rows; after the update an all-gather gives all ranks the new weights, in the type
that the model computes in. It goes from the first layer to the last while the next forward pass
does the same, and a layer waits for its own weights only (`wait_for_weights`).

    ZeRO-1  accumulates whole gradients over the micro-batches, one reduce-scatter a step
    ZeRO-2  one reduce-scatter a micro-batch; whole gradients live from their backward pass until
            their bucket is sent, only sums of own rows stay. In a pipeline, where backward passes
            of micro-batches overlap, it accumulates whole gradients too.

    bytes for each parameter, n ranks, bf16: ZeRO-1 2 + 4 + 12/n, ZeRO-2 2 + 16/n
    traffic of a rank in a step: as DDP; ZeRO-2 sends gradients once for each micro-batch
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.models.build import layer_modules
from drumline_trainer.parallelism.data_parallel.bucketed import BucketedModel
from drumline_trainer.parallelism.data_parallel.buckets import BUCKET_BYTES, piece_of
from drumline_trainer.parallelism.data_parallel.weights import ModelWeight, master_weights
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.storage import OpenStore

_IN_FLIGHT = 2
"""Buckets whose collectives run at once: their memory is that of whole gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transfer:
    """A collective under way, with the memory that it reads and writes."""

    number: int
    """Index of the bucket."""
    row: Tensor
    """The row of this rank."""
    matrix: Tensor
    """A row for each rank."""
    work: dist.Work


class ZeroModel(BucketedModel):
    """Weights whose update is divided among the ranks of a group, by rows."""

    def __init__(
        self,
        weights: Sequence[ModelWeight],
        *,
        group: ProcessGroup,
        backwards: int,
        every_backward: bool,
        bucket_bytes: int = BUCKET_BYTES,
        open_store: OpenStore | None = None,
    ) -> None:
        """Install hooks on the parameters of these weights.

        Args:
            weights: weights with storage, in the order of the model.
            group: among which the update is divided.
            backwards: how many backward passes a step has.
            every_backward: ZeRO-2: send the gradients of each of them.
            bucket_bytes: bytes of the gradients that are sent at once.
            open_store: opens a store for additional fp32 weights. None: they stay on the device.
        """
        super().__init__(
            weights,
            parts=group.size(),
            bucket_bytes=bucket_bytes,
            expected=1 if every_backward else backwards,
            rounds=backwards if every_backward else 1,
            send=self._start_scatter,
        )
        self._group, self._index = group, group.rank()
        self.slices = _own_rows(
            weights, index=group.rank(), parts=group.size(), open_store=open_store
        )
        self._own = dict(zip(self._parameters, self.slices, strict=True))
        self._scattering: deque[_Transfer] = deque()
        self._sums: dict[int, Tensor] = {}
        self._number_of: dict[Tensor, int] = {
            parameter: number
            for number, bucket in enumerate(self._buckets)
            for parameter in bucket.parameters
        }
        self._ungathered: deque[int] = deque()
        self._gathering: deque[_Transfer] = deque()

    def gradients(self) -> list[Tensor]:
        """Return the gradients of the slices in fp32, summed over the group.

        Call it once per step, after the last backward pass. Collective over the group.
        """
        self._finish_gathers()  # of what no forward pass has used; rows are overwritten next
        self._sender.finish()
        while self._scattering:
            self._finish_scatter()
        summed: dict[Tensor, Tensor] = {}
        for number, bucket in enumerate(self._buckets):
            rows = bucket.pieces(self._sums[number], index=self._index)
            summed.update(zip(bucket.parameters, rows, strict=True))
        return [summed[parameter] for parameter in self._parameters]

    @torch.no_grad()
    def refresh_copies(self) -> None:
        """Start to all-gather the updated slices of all ranks, beside the work that follows.

        A reader of the weights calls `make_whole` first. `gradients` waits for all of them.
        """
        self._finish_gathers()
        # buckets go from the last parameter to the first, and a forward pass the other way
        self._ungathered.extend(reversed(range(len(self._buckets))))
        self._start_gathers()

    @torch.no_grad()
    def make_whole(self, parameters: Iterable[Tensor]) -> None:
        """Wait until these have all ranks' rows. In the same order on all ranks."""
        if not self._gathering:
            return
        wanted = {self._number_of[p] for p in parameters if p in self._number_of}
        while not wanted.isdisjoint((*(t.number for t in self._gathering), *self._ungathered)):
            self._finish_gather()

    @torch.no_grad()
    def _finish_gathers(self) -> None:
        while self._gathering:
            self._finish_gather()

    def zero(self) -> None:
        """Drop the gradients."""
        self._sums.clear()
        super().zero()

    @torch.no_grad()
    def _start_scatter(self, number: int) -> None:
        matrix = self._take_gradients(number)
        row = matrix.new_empty(self._buckets[number].width)
        work = dist.reduce_scatter_tensor(row, matrix.view(-1), group=self._group, async_op=True)
        assert work is not None  # noqa: S101 - this rank is in the group
        self._scattering.append(_Transfer(number=number, row=row, matrix=matrix, work=work))
        if len(self._scattering) > _IN_FLIGHT:
            self._finish_scatter()

    @torch.no_grad()
    def _finish_scatter(self) -> None:
        transfer = self._scattering.popleft()
        with step_part("reduce_scatter", self._axis):
            transfer.work.wait()
        if transfer.number in self._sums:
            self._sums[transfer.number].add_(transfer.row)
        else:
            self._sums[transfer.number] = transfer.row

    def _start_gathers(self) -> None:
        while self._ungathered and len(self._gathering) < _IN_FLIGHT:
            self._gathering.append(self._start_gather(self._ungathered.popleft()))

    def _start_gather(self, number: int) -> _Transfer:
        bucket = self._buckets[number]
        dtype = bucket.parameters[0].dtype
        row = torch.empty(bucket.width, dtype=dtype, device=bucket.parameters[0].device)
        pieces = bucket.pieces(row, index=self._index)
        for parameter, piece in zip(bucket.parameters, pieces, strict=True):
            own = self._own[parameter]
            piece.copy_(own.tensor)
            if own.store is not None:
                own.store.release([own.tensor])
        matrix = row.new_empty(bucket.parts, bucket.width)
        work = dist.all_gather_into_tensor(matrix.view(-1), row, group=self._group, async_op=True)
        assert work is not None  # noqa: S101 - this rank is in the group
        return _Transfer(number=number, row=row, matrix=matrix, work=work)

    def _finish_gather(self) -> None:
        transfer = self._gathering.popleft()
        with step_part("all_gather", self._axis):
            transfer.work.wait()
        bucket = self._buckets[transfer.number]
        if transfer.matrix.dtype is torch.float32:
            # slices are rows of the parameters, and may have been written since
            pieces = bucket.pieces(transfer.matrix[self._index], index=self._index)
            for parameter, piece in zip(bucket.parameters, pieces, strict=True):
                piece.copy_(self._own[parameter].tensor)
        bucket.unpack(transfer.matrix)
        self._start_gathers()


def wait_for_weights(stage: nn.Module, models: Sequence[ZeroModel]) -> None:
    """Make a stage, its layers and its ends wait for their weights before their forward pass.

    A layer waits for all its weights at once, because hooks of a block may use those of another
    module.
    """
    last = [
        end
        for name in ("norm", "output")
        if isinstance(end := getattr(stage, name, None), nn.Module)
    ]
    layers = layer_modules(stage) if hasattr(stage, "layers") else []  # else it waits as a whole
    later = {p for module in (*last, *layers) for p in module.parameters()}
    units: list[tuple[nn.Module, list[Tensor]]] = [
        (stage, [p for p in stage.parameters() if p not in later]),
        *((layer, list(layer.parameters())) for layer in layers),
    ]
    if last:
        units.append((last[0], [p for end in last for p in end.parameters()]))
    for unit, parameters in units:
        for model in models:
            unit.register_forward_pre_hook(partial(_wait, model=model, parameters=parameters))


def _wait(*_: object, model: ZeroModel, parameters: Sequence[Tensor]) -> None:
    model.make_whole(parameters)


def _own_rows(
    weights: Sequence[ModelWeight], *, index: int, parts: int, open_store: OpenStore | None
) -> tuple[TensorSlice, ...]:
    """Return in fp32 the rows of the model's parameters themselves, or copies beside them."""
    boxes = [piece_of(w.parameter.shape, index=index, parts=parts) for w in weights]
    rows = [
        w.parameter.detach()[tuple(map(slice, box.offsets, box.ends))]
        for w, box in zip(weights, boxes, strict=True)
    ]
    masters = master_weights(rows, open_store=open_store)
    return tuple(
        w.part(tensor, box=box, copies=1, copy=0, store=store)
        for w, box, (tensor, store) in zip(weights, boxes, masters, strict=True)
    )
