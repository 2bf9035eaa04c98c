"""Asynchronous parameter servers, as the optimizer of one worker.

A worker clips the gradients of its own samples, pushes them and pulls new weights; other workers
may have pushed any number of times in between, so its next gradients are of weights that others
have left behind. `server.max_staleness` bounds by how many steps workers drift apart, and how many
updates gradients lacked is counted (`metrics.staleness`). A worker that is slow now and then holds
up nobody; the order of pushes is that of their coming, so no two runs have the same bits.

    bytes for each parameter: a worker 4 + 4, in bf16 2 more; a server of k for n workers
    (16 + 4 n)/k in host memory
    traffic in a step: as synchronous servers, but at all times instead of all at once
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from drumline_trainer.assembly.optimizer import Optimizer, build_optimizer
from drumline_trainer.config import TrainerConfig
from drumline_trainer.layout import Axis
from drumline_trainer.metrics.staleness import Staleness
from drumline_trainer.metrics.step_timer import step_part
from drumline_trainer.parallelism.data_parallel.parameter_server.clocks import Clocks
from drumline_trainer.parallelism.data_parallel.parameter_server.servers import Rows, Servers
from drumline_trainer.parallelism.data_parallel.parameter_server.serving import Server, Tag, What
from drumline_trainer.sharding.slices import Slice
from drumline_trainer.sharding.world import World


class AsynchronousServers:
    """`update` pushes and pulls: afterwards the worker's slices hold newer weights."""

    def __init__(
        self, slices: Sequence[Slice], config: TrainerConfig, *, whole: World, worker: World
    ) -> None:
        """Share the weights of these slices, a worker's, out over the servers. Collective."""
        self._config = config
        self._device = worker.device
        self._who = Servers.of(config.parallelism.server, whole=whole, worker=worker)
        self._rows = Rows(slices=tuple(slices), servers=len(self._who.servers))
        number = self._who.number
        self._weights = torch.zeros(self._rows.size(number))
        held = self._rows.held(self._weights, number, copies=worker.size(Axis.DATA))
        self._optimizer: Optimizer = build_optimizer(held, config.optimizer, worker)
        self._server: Server | None = None

    def slices(self) -> list[Slice]:
        """Weights and state of the server that this rank is."""
        return self._optimizer.slices()

    def set_finished_steps(self, steps: int) -> None:
        """Begin to serve: what was restored, or after no step the first weights of all workers."""
        who, workers = self._who, len(self._who.leaders)
        self._optimizer.set_finished_steps(steps * workers)
        if who.rank in who.servers:
            if not steps:
                own = [one.tensor for one in self._rows.slices]
                self._weights.copy_(self._rows.pack(own, who.number))
            self._serve(steps)
        if steps:
            self._exchange(What.PULL)

    def update(self, gradients: Sequence[Tensor], *, rate: float) -> None:
        """Push these gradients, and pull once the slowest worker is near enough."""
        self._exchange(What.PUSH_AND_PULL, gradients, rate=rate)

    def leave(self) -> None:
        """Ask for no more, and serve the other workers until they do not either."""
        if self._who.leads:
            for work, _ in self._send(What.LEAVE, (), rate=0.0):
                work.wait()
        if self._server is not None:
            self._server.finish()

    def staleness(self) -> Staleness:
        """Of all pushes since the last time. Collective, where no worker is under way."""
        missed, ahead = self._server.take_staleness() if self._server else ([], 0)
        sums = torch.tensor([sum(missed), len(missed)], dtype=torch.float64, device=self._device)
        most = torch.tensor([max(missed, default=0), ahead], device=self._device)
        dist.all_reduce(sums)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        total, pushes = sums.tolist()
        most_missed, steps_ahead = most.tolist()
        return Staleness(mean=total / max(pushes, 1), most=most_missed, steps_ahead=steps_ahead)

    def _serve(self, finished: int) -> None:
        who, rows = self._who, self._rows
        bound = self._config.parallelism.server.max_staleness
        self._server = Server(
            self._weights,
            self._optimizer,
            unpack=lambda row: rows.unpack(row, who.number),
            clocks=Clocks.of(workers=len(who.leaders), bound=bound, finished=finished),
        )
        for worker, leader in enumerate(who.leaders):
            if leader != who.rank and who.group is not None:
                self._server.listen(worker, rank=leader, group=who.group)

    def _exchange(self, what: What, gradients: Sequence[Tensor] = (), *, rate: float = 0.0) -> None:
        """With all servers, the leader for its node."""
        who = self._who
        pushed = self._send(what, gradients, rate=rate) if who.leads else []
        for number, server in enumerate(who.servers):
            row = torch.empty(self._rows.size(number))
            if who.leads:
                with step_part("recv", "servers"):  # where the slowest worker is waited for
                    self._receive(row, server)
            row = row.to(self._device)
            who.give_node(row)
            self._rows.write(row, number)
        for work, _ in pushed:
            work.wait()

    def _send(
        self, what: What, gradients: Sequence[Tensor], *, rate: float
    ) -> list[tuple[dist.Work, Tensor]]:
        """To all servers at once; with what must stay in memory until it has left."""
        who = self._who
        pushed: list[tuple[dist.Work, Tensor]] = []
        for number, server in enumerate(who.servers):
            rows = [torch.tensor([what, rate], dtype=torch.float64)]
            rows += [self._rows.pack(gradients, number)] if gradients else []
            if server != who.rank:
                for row in rows:
                    work = dist.isend(row, dst=server, group=who.group, tag=Tag.QUESTION)
                    assert work is not None  # noqa: S101 - this rank is in the group
                    pushed.append((work, row))
            elif gradients:
                assert self._server is not None  # noqa: S101 - it is this rank
                self._server.push(who.leaders.index(who.rank), rows[1], rate=rate)
        return pushed

    def _receive(self, row: Tensor, server: int) -> None:
        """Raise ConnectionError where another worker is gone."""
        who = self._who
        if server == who.rank:
            assert self._server is not None  # noqa: S101 - it is this rank
            self._server.pull(who.leaders.index(who.rank), row)
            return
        well = torch.empty(1)
        dist.recv(well, src=server, group=who.group, tag=Tag.ANSWER)
        if not well:
            raise ConnectionError(f"parameter server: rank {server} has lost a worker")
        dist.recv(row, src=server, group=who.group, tag=Tag.ANSWER)
