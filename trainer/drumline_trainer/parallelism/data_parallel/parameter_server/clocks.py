"""Bounds on how far workers may drift apart: stale synchronous parallel (Ho et al. 2013). No torch.

A worker's clock is the number of steps whose gradients a server has applied. Step c may begin once
the slowest worker's clock is at least c - s. With s = 0 all workers are in step. With a larger s an
occasionally slow worker does not delay others. So the weights at the start of a step lack no update
of a step before c - s.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Clocks:
    """The clocks on a server. Not thread-safe: the server holds a lock."""

    bound: int
    """s."""
    finished: list[int]
    """Number of applied steps by worker."""
    version: int = 0
    """Updates, of all workers."""
    pulled: list[int]
    """Version of the weights that each worker has."""

    @classmethod
    def of(cls, *, workers: int, bound: int, finished: int = 0) -> Clocks:
        """Make clocks of workers that have all finished the same number of steps.

        Args:
            workers: number of workers.
            bound: largest lead in steps of one worker over the slowest.
            finished: steps that each worker has finished.
        """
        return cls(bound=bound, finished=[finished] * workers, pulled=[0] * workers)

    def may_pull(self, worker: int) -> bool:
        """Return whether this worker may begin its next step."""
        return self.ahead(worker) <= self.bound

    def ahead(self, worker: int) -> int:
        """Return the number of steps that it is ahead of the slowest worker."""
        return self.finished[worker] - min(self.finished)

    def pull(self, worker: int) -> None:
        """Note that a worker gets the present weights."""
        self.pulled[worker] = self.version

    def push(self, worker: int) -> int:
        """Count an applied gradient; returns how many updates the weights it is of lacked."""
        missed = self.version - self.pulled[worker]
        self.version += 1
        self.finished[worker] += 1
        return missed


def most_missed(*, workers: int, bound: int) -> int:
    """Return the bound of a gradient's staleness, in updates of other workers.

    When a step c begins, every other worker has finished at least c - s steps. Until it is over,
    none finishes more than c + s + 1. That makes 2s + 1 updates of each other worker.
    """
    return (workers - 1) * (2 * bound + 1)
