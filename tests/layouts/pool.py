"""Up to eight rank processes that import torch once and train one layout after another.

Each layout gets a store of its own and fresh process groups; afterwards the processes forget them,
as ranks do that rejoin a gang. A worker that dies or hangs takes the pool with it: the next layout
starts a new one.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.recovery.abort import leave_membership
from drumline_trainer.recovery.rendezvous_store import listen, store_on
from tests.gloo.gang import fork_server

Job = Callable[..., Any]


class LayoutError(AssertionError):
    """A rank of a layout failed, or said nothing any more."""


class Pool:
    """Start with `run`; end with `close`."""

    def __init__(self, *, local_world_size: int | None = None) -> None:
        """With the ranks that are to share the cores; None: those of the layout."""
        self._local_world_size = local_world_size
        self._context = fork_server()
        self._workers: list[tuple[BaseProcess, Connection]] = []

    def run(
        self, job: Job, *arguments: Any, ranks: int, seconds: float = 1000.0, **place: Any
    ) -> Any:
        """What rank 0's `job(placement, *arguments)` returned.

        Raises:
            LayoutError: with the traces of all ranks that failed.
        """
        self._fill(ranks)
        listener = listen(0, address="127.0.0.1")
        port = listener.getsockname()[1]
        store = store_on(listener)
        pipes: dict[Connection, int] = {}
        for rank, (_, pipe) in enumerate(self._workers[:ranks]):
            placement = Placement(
                rank=rank,
                world_size=ranks,
                local_rank=rank,
                local_world_size=self._local_world_size or ranks,
                store_port=port,
                address="127.0.0.1",
                **place,
            )
            pipe.send((job, placement, arguments))
            pipes[pipe] = rank
        answers = self._answers(pipes, seconds=seconds)
        del store
        failed = {rank: text for rank, (well, text) in answers.items() if not well}
        if failed or len(answers) < ranks:
            self.close()
            silent = sorted(set(range(ranks)) - answers.keys())
            traces = "\n".join(f"--- rank {rank}\n{text}" for rank, text in failed.items())
            raise LayoutError(f"silent ranks: {silent}\n{traces}")
        return answers[0][1]

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._workers:
            process.kill()
            process.join()
            pipe.close()
        self._workers = []

    def _answers(
        self, pipes: dict[Connection, int], *, seconds: float
    ) -> dict[int, tuple[bool, Any]]:
        answers: dict[int, tuple[bool, Any]] = {}
        while len(answers) < len(pipes):
            waiting = [pipe for pipe, rank in pipes.items() if rank not in answers]
            ready = wait(waiting, timeout=seconds if all(w for w, _ in answers.values()) else 3.0)
            if not ready:
                break
            for pipe in ready:
                try:
                    answers[pipes[pipe]] = pipe.recv()  # type: ignore[index,union-attr]
                except EOFError:
                    answers[pipes[pipe]] = (False, "the process died")  # type: ignore[index]
        return answers

    def _fill(self, ranks: int) -> None:
        while len(self._workers) < ranks:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))


def _serve(pipe: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            job, placement, arguments = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, job(placement, *arguments))
        except Exception:  # noqa: BLE001 - the process boundary
            answer = (False, traceback.format_exc())
        leave_membership(torch.device("cpu"))
        pipe.send(answer)
