"""Asynchronous parameter servers, as the optimizer of one worker.

A worker clips the gradients of its own samples, pushes them and pulls new weights. Other workers
may push any number of times in between, so its next gradients may be of stale weights.
`server.max_staleness` bounds by how many steps workers drift apart (stale synchronous parallel,
`clocks`), and the number of updates that gradients lacked is counted
(`contract.step_figures.step_record`). A worker that is slow now and then delays no other worker;
pushes are applied in the order in which they arrive, so no two runs have the same bits.

    worker 0    step 1 │ push pull │ step 2 │ push pull │ step 3 ...       max_staleness 1:
    worker 1    step 1              │ push pull │ step 2                   worker 0 may begin step 3
    version     0 ─────── 1 ─────── 2 ────────── 3                         only when worker 1 has
    staleness             0         1            1                         pushed step 1

    bytes for each parameter: a worker 4 + 4, in bf16 2 more; a server of k for n workers
    (16 + 4 n)/k in host memory
    traffic in a step: as synchronous servers, but at all times instead of all at once
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_contract.config import TrainerConfig
from drumline_contract.layout import Axis
from drumline_contract.step_figures.step_record import Staleness
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.optimization.optimizer import BuildOptimizer, Optimizer
from drumline_trainer.parallelism.data_parallel.parameter_server.clocks import Clocks
from drumline_trainer.parallelism.data_parallel.parameter_server.servers import (
    ServerRows,
    ServerTopology,
)
from drumline_trainer.parallelism.data_parallel.parameter_server.serving import (
    AsynchronousServer,
    Tag,
    WorkerRequest,
)
from drumline_trainer.sharding.slices import TensorSlice
from drumline_trainer.sharding.world import World


class AsynchronousServers:
    """`update` pushes and pulls: afterwards the worker's slices hold newer weights."""

    def __init__(
        self,
        slices: Sequence[TensorSlice],
        config: TrainerConfig,
        *,
        build: BuildOptimizer,
        whole: World,
        worker: World,
    ) -> None:
        """Divide the weights of a worker's slices among the servers. Collective.

        Args:
            slices: slices of the worker's model.
            config: configuration of the run.
            build: makes a server's optimizer.
            whole: all ranks.
            worker: the ranks of this worker.
        """
        self._config = config
        self._device = worker.device
        self._topology = ServerTopology.of(config.parallelism.server, whole=whole, worker=worker)
        self._rows = ServerRows(slices=tuple(slices), servers=len(self._topology.servers))
        number = self._topology.number
        self._weights = torch.zeros(self._rows.size(number))
        held = self._rows.held(self._weights, number, copies=worker.size(Axis.DATA))
        self._optimizer: Optimizer = build(held)
        self._server: AsynchronousServer | None = None

    def slices(self) -> list[TensorSlice]:
        """Return weights and state of the server that this rank is."""
        return self._optimizer.slices()

    def set_finished_steps(self, steps: int) -> None:
        """Begin to serve: what was restored, or after no step the first weights of all workers."""
        topology, workers = self._topology, len(self._topology.leaders)
        self._optimizer.set_finished_steps(steps * workers)
        if topology.rank in topology.servers:
            if not steps:
                own = [part.tensor for part in self._rows.slices]
                self._weights.copy_(self._rows.pack(own, topology.number))
            self._serve(steps)
        if steps:
            self._exchange(WorkerRequest.PULL)

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Push these gradients, and pull once the slowest worker is near enough."""
        self._exchange(WorkerRequest.PUSH_AND_PULL, gradients, rate=rate)

    def leave(self) -> None:
        """Ask for no more, and serve the other workers until they do not either."""
        if self._topology.leads:
            for work, _ in self._send(WorkerRequest.LEAVE, (), rate=0.0):
                work.wait()
        if self._server is not None:
            self._server.finish()

    def staleness(self) -> Staleness:
        """Return the staleness of all pushes since the last call.

        Collective, while no worker is active.
        """
        missed, ahead = self._server.take_staleness() if self._server else ([], 0)
        sums = torch.tensor([sum(missed), len(missed)], dtype=torch.float64, device=self._device)
        most = torch.tensor([max(missed, default=0), ahead], device=self._device)
        dist.all_reduce(sums)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        total, pushes = cast("list[float]", sums.tolist())  # pyright: ignore[reportUnknownMemberType] - torch does not say what is in the list
        most_missed, steps_ahead = cast("list[int]", most.tolist())  # pyright: ignore[reportUnknownMemberType] - torch does not say what is in the list
        return Staleness(mean=total / max(pushes, 1), most=most_missed, steps_ahead=steps_ahead)

    def _serve(self, finished: int) -> None:
        topology, rows = self._topology, self._rows
        bound = self._config.parallelism.server.max_staleness
        self._server = AsynchronousServer(
            self._weights,
            self._optimizer,
            unpack=lambda row: rows.unpack(row, topology.number),
            clocks=Clocks.of(workers=len(topology.leaders), bound=bound, finished=finished),
        )
        for worker, leader in enumerate(topology.leaders):
            if leader != topology.rank and topology.group is not None:
                self._server.listen(worker, rank=leader, group=topology.group)

    def _exchange(
        self, what: WorkerRequest, gradients: Sequence[Tensor] = (), *, rate: float = 0.0
    ) -> None:
        """Exchange with all servers; the leader does so for its node."""
        topology = self._topology
        pushed = self._send(what, gradients, rate=rate) if topology.leads else []
        for number, server in enumerate(topology.servers):
            row = torch.empty(self._rows.size(number))
            if topology.leads:
                with step_part("recv", "servers"):  # where the slowest worker is waited for
                    self._receive(row, server)
            row = row.to(self._device)
            topology.broadcast_in_node(row)
            self._rows.write(row, number)
        for work, _ in pushed:
            work.wait()

    def _send(
        self, what: WorkerRequest, gradients: Sequence[Tensor], *, rate: float
    ) -> list[tuple[dist.Work, Tensor]]:
        """Send to all servers at once; returns what must stay in memory until it has left."""
        topology = self._topology
        pushed: list[tuple[dist.Work, Tensor]] = []
        for number, server in enumerate(topology.servers):
            rows = [torch.tensor([what, rate], dtype=torch.float64)]
            rows += [self._rows.pack(gradients, number)] if gradients else []
            if server != topology.rank:
                for row in rows:
                    work = dist.isend(row, dst=server, group=topology.group, tag=Tag.QUESTION)
                    assert work is not None  # noqa: S101 - this rank is in the group
                    pushed.append((work, row))
            elif gradients:
                assert self._server is not None  # noqa: S101 - it is this rank
                self._server.push(topology.leaders.index(topology.rank), rows[1], rate=rate)
        return pushed

    def _receive(self, row: Tensor, server: int) -> None:
        """Raise ConnectionError where another worker is gone."""
        topology = self._topology
        if server == topology.rank:
            assert self._server is not None  # noqa: S101 - it is this rank
            self._server.pull(topology.leaders.index(topology.rank), row)
            return
        well = torch.empty(1)
        dist.recv(well, src=server, group=topology.group, tag=Tag.ANSWER)
        if not well:
            raise ConnectionError(f"parameter server: rank {server} has lost a worker")
        dist.recv(row, src=server, group=topology.group, tag=Tag.ANSWER)
