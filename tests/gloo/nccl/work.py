"""One operation on a stream of the stand-in, and several that are one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from tests.gloo.nccl.device import Waiting
from tests.gloo.nccl.flight_records import Record

WAITING = "STAND_IN_WAITING"
"""How threads wait, of `Waiting`."""
Operation = Callable[[Any, list[Tensor], list[Tensor]], Any]
"""Of Gloo's group, on copies of the inputs and the outputs; gives Gloo's work."""


class StreamWork(dist.Work):
    """One operation on a stream."""

    def __init__(
        self,
        name: str,
        *,
        inputs: list[Tensor],
        outputs: list[Tensor],
        run: Operation,
        sequence_number: int,
        record: Record,
    ) -> None:
        super().__init__()
        self.name = name
        self.record = record
        self.sequence_number = sequence_number
        self.began_at = time.monotonic()
        self.inputs = inputs
        self.outputs = outputs
        self.run = run
        self.ended = threading.Event()
        self._waiting = Waiting(os.environ.get(WAITING, Waiting.BLOCKED.value))

    def wait(self, timeout: timedelta | None = None) -> bool:  # noqa: ARG002 - torch's
        """Until it is complete or aborted. Never raises, as a wait on a stream does not."""
        self._waiting.until(self.ended)
        return True

    def is_completed(self) -> bool:
        """Complete or aborted."""
        return self.ended.is_set()

    def leave_partial(self) -> None:
        """End as an aborted kernel does: some blocks have added what had come, others not."""
        # its record stays as it is: an aborted operation is never complete
        for out in self.outputs:
            half = out.detach().view(-1)[: (out.numel() + 1) // 2]
            half.add_(half)
        self.ended.set()


class Works:
    """Of Gloo."""

    def __init__(self, works: Sequence[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        """For all."""
        for work in self._works:
            work.wait()


class Batch:
    """Sends and receives that are called together."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.outputs: list[Tensor] = []
        self._calls: list[tuple[int, int, Operation]] = []

    def add(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], run: Operation) -> None:
        """One more."""
        self._calls.append((len(inputs), len(outputs), run))
        self.inputs += inputs
        self.outputs += outputs

    def run(self, group: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Works:
        """All at once, on copies: none waits for another."""
        works: list[Any] = []
        for sent, received, run in self._calls:
            works.append(run(group, inputs[:sent], outputs[:received]))
            inputs, outputs = inputs[sent:], outputs[received:]
        return Works(works)
