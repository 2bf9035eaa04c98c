"""Which GPU a stream's thread is at."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch

from drumline_trainer.memory.transfer_streams import TransferStream

DEVICE = torch.device("cuda", 3)


class Event:
    """No GPU is there to record it."""

    def record(self) -> None: ...


class Stream:
    """Of a GPU that is not there."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def wait_event(self, event: Event) -> None: ...

    def synchronize(self) -> None: ...


def test_its_thread_is_at_the_lane_s_gpu_before_it_does_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread begins at GPU 0, and leaving a stream goes back to where it was."""
    did: list[tuple[str, threading.Thread]] = []

    def set_device(device: torch.device) -> None:
        did.append((f"at {device}", threading.current_thread()))

    def stream(_: Stream) -> AbstractContextManager[None]:
        did.append(("copies", threading.current_thread()))
        return nullcontext()

    for name, stand_in in {"Stream": Stream, "Event": Event}.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(torch.cuda, "set_device", set_device)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    stream = TransferStream(DEVICE)
    for _ in range(2):
        stream.copy([(torch.zeros(1), torch.ones(1))]).result()
    stream.close()
    assert [what for what, _ in did] == ["at cuda:3", "copies", "copies"]
    assert len({thread for _, thread in did}) == 1
    assert threading.current_thread() not in {thread for _, thread in did}
