"""Last lines of processes, as torch, Gloo, NCCL and JAX print them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from drumline_agent.commands.command_faults import CommandFaults, last_error, lost_peers
from drumline_agent.commands.command_process import CommandProcess
from drumline_agent.processes.fault_classification import MemoryKills
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode, FaultClass

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


@pytest.mark.parametrize(
    ("line", "code", "expected"),
    [
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", 1, 69),
        ("RuntimeError: Found no NVIDIA driver on your system.", 3, 69),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", 1, 1),
        ("a library's own code for something else", 69, 1),
    ],
)
def test_a_gpu_that_fails_under_a_command_is_told_by_its_last_words(
    line: str, code: int, expected: int, tmp_path: Path
) -> None:
    process = SimpleNamespace(
        placement=Placement(rank=0, world_size=1, generation=1),
        kill_reason=None,
        output=SimpleNamespace(last_lines=[line]),
        failed_restore=False,
    )
    faults = CommandFaults(index=0, memory=MemoryKills(tmp_path))
    fault = faults.process_ended(cast("CommandProcess", process), code, step=5)
    failed = expected == ExitCode.DEVICE
    kind = FaultClass.INFRASTRUCTURE if failed else FaultClass.APPLICATION
    assert (fault.exit_code, fault.fault_class) == (expected, kind)
