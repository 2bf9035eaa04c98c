"""Copies beside the work: one lane to the device and one away from it, a thread each.

On a GPU a lane's copies are on a stream of its own, begin when what came before on the main stream
is done, and are over when the lane says so. On a CPU the same threads copy from memory to memory,
or to mapped files, where a copy is what reads and writes the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class Lane:
    """Copies tensors in the order in which it is asked to."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(
            max_workers=1, thread_name_prefix="offload", initializer=self._begin
        )

    def copy(
        self,
        pairs: Iterable[tuple[Tensor, Tensor]],
        *,
        then: Callable[[], None] | None = None,
    ) -> Future[None]:
        """Copy the second of each pair to the first, and then do that; done when all is.

        What the main stream was given so far is waited for.
        """
        before = None
        if self._stream is not None:
            before = torch.cuda.Event()
            before.record()
        return self._thread.submit(self._run, tuple(pairs), before, then)

    def close(self) -> None:
        """Wait for all copies; there are no more."""
        self._thread.shutdown()

    def _begin(self) -> None:
        """In the thread: it would begin at GPU 0, and take memory there whatever the rank's is."""
        if self._stream is not None:
            torch.cuda.set_device(self._stream.device)

    @torch.no_grad()
    def _run(
        self,
        pairs: tuple[tuple[Tensor, Tensor], ...],
        before: torch.cuda.Event | None,
        then: Callable[[], None] | None,
    ) -> None:
        if self._stream is None or before is None:
            for target, source in pairs:
                target.copy_(source)
        else:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(before)
                for target, source in pairs:
                    target.copy_(source, non_blocking=True)
            self._stream.synchronize()
        if then is not None:
            then()
