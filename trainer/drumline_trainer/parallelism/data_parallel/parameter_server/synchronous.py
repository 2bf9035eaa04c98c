"""Synchronous parameter servers: one update a step, from the sum of all pushes.

Every worker cuts its gradients into a row for each server and sends them all at once; a server adds
what comes in the order of the workers, so the same ranks give the same bits. The loop then updates
the slices that lie on servers, other ranks have none, and servers send their rows to all.

    bytes for each parameter: a worker 4 + 4, in bf16 2 more; a server of k 16/k in host memory
    traffic in a step: a worker pushes and pulls its gradients once, a server of k for n workers
    receives (n - 1) / k of them and sends weights to all

Results are those of `ddp` to rounding, and the busiest link is k times less busy with k servers;
with as many servers as workers it is `zero1`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline_contract.config import ServerConfig
from drumline_contract.layout import Axis
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.parallelism.data_parallel.apply import DataParallelModel
from drumline_trainer.parallelism.data_parallel.parameter_server.servers import (
    ServerRows,
    ServerTopology,
)
from drumline_trainer.sharding.world import World


class SynchronousServers:
    """A worker's model, and the slices that this rank serves; see `data_parallel`.

    Args:
        own: model of this worker.
        config: number of workers and settings of the server.
        whole: groups of all ranks.
        worker: groups of this worker's ranks.
    """

    def __init__(
        self, own: DataParallelModel, config: ServerConfig, *, whole: World, worker: World
    ) -> None:
        """Serve the weights of `own`, which sums over the ranks of one worker. Collective."""
        self._own = own
        self._topology = ServerTopology.of(config, whole=whole, worker=worker)
        self._rows = ServerRows(slices=own.slices, servers=len(self._topology.servers))
        self._weights = torch.empty(self._rows.size(self._topology.number))
        self.slices = self._rows.held(
            self._weights, self._topology.number, copies=worker.size(Axis.DATA)
        )
        self.frozen = own.frozen

    @property
    def stage_done(self) -> Callable[[nn.Module], None] | None:
        """Callback of the worker's model."""
        return self._own.stage_done

    def gradients(self) -> list[Tensor]:
        """Push, and on a server add up."""
        topology, gradients = self._topology, self._own.gradients()
        if not topology.leads:
            return self._rows.unpack(torch.empty(0), topology.number)
        rows = [self._rows.pack(gradients, server) for server in range(len(topology.servers))]
        pushes = [
            dist.isend(row, dst=server, group=topology.group)
            for row, server in zip(rows, topology.servers, strict=True)
            if server != topology.rank
        ]
        total = torch.empty(0)
        if topology.rank in topology.servers:
            total = self._sum(rows[topology.number])
        with step_part("send", "servers"):
            for push in pushes:
                assert push is not None  # noqa: S101 - this rank is in the group
                push.wait()
        return self._rows.unpack(total, topology.number)

    def refresh_copies(self) -> None:
        """Pull: all ranks get what has been written into the servers' slices."""
        topology = self._topology
        for number, server in enumerate(topology.servers):
            row = self._weights if server == topology.rank else torch.empty(self._rows.size(number))
            if topology.group is not None:
                with step_part("broadcast", "servers"):
                    dist.broadcast(row, src=server, group=topology.group)
            row = row.to(self._rows.slices[0].tensor.device)
            topology.broadcast_in_node(row)
            self._rows.write(row, number)
        self._own.refresh_copies()

    def zero(self) -> None:
        """Drop the worker's gradients."""
        self._own.zero()

    def _sum(self, own: Tensor) -> Tensor:
        """Sum the rows [n] of all workers in a fixed order, for equal bits each time."""
        topology = self._topology
        total, pushed = torch.zeros_like(own), torch.empty_like(own)
        for leader in topology.leaders:
            if leader != topology.rank:
                with step_part("recv", "servers"):
                    dist.recv(pushed, src=leader, group=topology.group)
            total += own if leader == topology.rank else pushed
        return total
