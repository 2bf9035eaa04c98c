"""How far workers may drift apart: stale synchronous parallel (Ho et al. 2013). No torch.

A worker's clock is the number of steps whose gradients a server has applied. Step c may begin once
the slowest worker's clock is at least c - s: with s = 0 all are in step, with a larger s a worker
that is slow now and then delays no other. So the weights that a step begins with lack no update of
a step before c - s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Clocks:
    """The clocks on a server. Not thread-safe: the server holds a lock."""

    bound: int
    """s."""
    finished: list[int]
    """By worker: steps that were applied."""
    version: int = 0
    """Updates, of all workers."""
    pulled: list[int]
    """By worker: the version of the weights that it has."""

    @classmethod
    def of(cls, *, workers: int, bound: int, finished: int = 0) -> Clocks:
        """Clocks of workers that have all finished so many steps."""
        return cls(bound=bound, finished=[finished] * workers, pulled=[0] * workers)

    def may_pull(self, worker: int) -> bool:
        """Whether this worker may begin its next step."""
        return self.ahead(worker) <= self.bound

    def ahead(self, worker: int) -> int:
        """Steps that it has finished and the slowest has not."""
        return self.finished[worker] - min(self.finished)

    def pull(self, worker: int) -> None:
        """It gets the weights as they are now."""
        self.pulled[worker] = self.version

    def push(self, worker: int) -> int:
        """Its gradient was applied: how many updates the weights it is of lacked."""
        missed = self.version - self.pulled[worker]
        self.version += 1
        self.finished[worker] += 1
        return missed


def most_missed(*, workers: int, bound: int) -> int:
    """The bound of a gradient's staleness, in updates of other workers.

    When a step c begins, every other worker has finished at least c - s steps; and until it is
    over, none finishes more than c + s + 1: 2s + 1 updates of each other worker.
    """
    return (workers - 1) * (2 * bound + 1)
