"""Last lines of processes, as torch, Gloo, NCCL and JAX print them."""

from __future__ import annotations

import pytest

from drumline_trainer.agent.commands.command_faults import last_error, lost_peers

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: boom",
]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (TRACEBACK, "ValueError: boom"),
        ([*TRACEBACK, "[W] destroy_process_group() was not called"], "ValueError: boom"),
        (["[rank3]: torch.OutOfMemoryError: no room"], "torch.OutOfMemoryError: no room"),
        (["step 1", "Killed"], "Killed"),
        (["KeyboardInterrupt"], "KeyboardInterrupt"),
        ([], ""),
    ],
)
def test_the_last_exception_is_the_message_and_else_the_last_line(
    lines: list[str], error: str
) -> None:
    assert last_error(lines) == error


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:5",
        "RuntimeError: [..] Read error [127.0.0.1]:5: Connection reset by peer",
        (
            "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed "
            "possibly "
            "due to a network error or a remote process exiting prematurely."
        ),
        (
            "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was "
            "likely closed. Did the remote server shutdown or crash?"
        ),
        "BrokenPipeError: [Errno 32] Broken pipe",
    ],
    ids=["Gloo", "Gloo's read", "NCCL", "TCPStore", "pipe"],
)
def test_an_error_of_a_collective_whose_peer_is_gone_is_a_consequence(line: str) -> None:
    lines = ["step 1", line]
    assert lost_peers(lines, message=last_error(lines))


def test_an_exception_of_the_program_is_its_own_whatever_was_printed_before() -> None:
    lines = ["warning: Connection reset by peer, trying again", *TRACEBACK]
    assert not lost_peers(lines, message=last_error(lines))
    aborted = ["terminate called after throwing", "what(): remote process exited", "Aborted"]
    assert lost_peers(aborted, message=last_error(aborted))
