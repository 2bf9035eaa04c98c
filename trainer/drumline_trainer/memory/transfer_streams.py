"""Transfer streams: copies beside the computation, one stream to the device and one from it.

Each has a thread. On a GPU its copies run on a CUDA stream of their own, begin when what came
before on the main stream is done, and are complete when the future says so. On a CPU the same
threads copy from memory to memory, or to mapped files, where a copy is what reads and writes the
disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor


class TransferStream:
    """Copies tensors in the order of the requests."""

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
        """Copy the second tensor of each pair to the first, then call `then`.

        Waits for what the main stream was given so far. The future is done after `then`.
        """
        before = None
        if self._stream is not None:
            before = torch.cuda.Event()
            before.record()
        return self._thread.submit(self._run, tuple(pairs), before, then)

    def close(self) -> None:
        """Wait for all copies; none may follow."""
        self._thread.shutdown()

    def _begin(self) -> None:
        """Choose the rank's GPU in the thread, which would otherwise take memory on GPU 0."""
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
