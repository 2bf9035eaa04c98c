"""Last lines of processes, as torch, Gloo, NCCL and JAX print them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from drumline_agent.commands.command_faults import CommandFaults, last_exception, lost_peers
from drumline_agent.commands.command_process import CommandProcess
from drumline_agent.processes.fault_classification import MemoryKills
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import MAX_CAUSE_CHARS, ExitCode, FaultClass

TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: boom",
]


NOT_COMPILED = [
    '  File "/code/train.py", line 12',
    "    print(",
    "         ^",
    "SyntaxError: '(' was never closed",
]


def a_process(lines: list[str]) -> CommandProcess:
    process = SimpleNamespace(
        placement=Placement(rank=0, world_size=1, generation=1),
        kill_reason=None,
        output=SimpleNamespace(last_lines=lines),
        failed_restore=False,
    )
    return cast("CommandProcess", process)


@pytest.mark.parametrize(
    ("lines", "code", "cause"),
    [
        (TRACEBACK, 1, "ValueError: boom [exit code 1]"),
        ([*TRACEBACK, "[W] destroy_process_group()"], 1, "ValueError: boom [exit code 1]"),
        (["[rank3]: torch.OutOfMemoryError: no"], 1, "torch.OutOfMemoryError: no [exit code 1]"),
        (
            NOT_COMPILED,
            1,
            "SyntaxError: '(' was never closed (/code/train.py, line 12) [exit code 1]",
        ),
        (
            ["Traceback (most recent call last):", "    raise Diverged", "mine.Diverged: at 3"],
            *(1, "mine.Diverged: at 3 [exit code 1]"),
        ),
        (
            [
                *("[rank1]: Traceback (most recent call last):", "[rank1]:     raise"),
                *("[rank1]: mine.Diverged", "Traceback (most recent call last):"),
                *(
                    "    main()",
                    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
                ),
            ],
            *(1, "mine.Diverged [exit code 1]"),
        ),
        (
            [
                *("Traceback (most recent call last):", "    main()"),
                "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:",
                "  traceback : Signal 9 (SIGKILL) received by PID 4711",
            ],
            *(1, "a rank: Signal 9 (SIGKILL) received by PID 4711 [exit code 1]"),
        ),
        (
            ["terminate called after throwing an instance of 'std::bad_alloc'", "  what():  bad"],
            *(-6, "bad [killed by SIGABRT]"),
        ),
        (
            ["usage: a.py [-h]", "a.py: error: unrecognized arguments: --lrr"],
            *(2, "a.py: error: unrecognized arguments: --lrr [exit code 2]"),
        ),
        (
            ["/usr/bin/python3: No module named train"],
            *(1, "/usr/bin/python3: No module named train [exit code 1]"),
        ),
        (["sh: 1: tran: not found"], 127, "sh: 1: tran: not found [exit code 127]"),
        (["a.py: error: x", "more"], 2, "exit code 2; last line: more"),
        (
            ["a.py: error: no --lr", TRACEBACK[0], "ChildFailedError:", "  exitcode  : 2 (pid: 4)"],
            *(1, "a.py: error: no --lr [exit code 1]"),
        ),
        (
            [TRACEBACK[0], "ChildFailedError:", "  exitcode  : 3 (pid: 4)"],
            *(1, "a rank: exit code 3 [exit code 1]"),
        ),
        (
            ["  | ExceptionGroup: many (1 sub-exception)", "    | ValueError: a", "    +-----"],
            *(1, "ValueError: a [exit code 1]"),
        ),
        ([TRACEBACK[0], "\x1b[1;31mValueError\x1b[0m: red"], 1, "ValueError: red [exit code 1]"),
        # A handled exception does not kill. One just before a crash at exit may be the cause.
        (
            [*TRACEBACK, "skipped", "step 7", "step 8"],
            *(-9, "killed by SIGKILL; last line: step 8"),
        ),
        ([*TRACEBACK, "exiting"], -11, "ValueError: boom [killed by SIGSEGV]"),
        (["KeyboardInterrupt"], -2, "KeyboardInterrupt [killed by SIGINT]"),
        (["warning: no hostname"], -9, "killed by SIGKILL; last line: warning: no hostname"),
        (["loss 4.5"], 64, "exit code 64; last line: loss 4.5"),
        ([], -11, "killed by SIGSEGV"),
        ([], 3, "exit code 3"),
        (["x" * 16_384], -9, "killed by SIGKILL; last line: xxx"),
    ],
)
def test_a_cause_is_an_exception_or_how_the_process_ended(
    lines: list[str], code: int, cause: str, tmp_path: Path
) -> None:
    faults = CommandFaults(index=0, memory=MemoryKills(tmp_path))
    fault = faults.process_ended(a_process(lines), code, step=5)
    assert fault.cause[: len("rank 0: ") + len(cause)] == f"rank 0: {cause}"
    assert len(fault.cause) <= MAX_CAUSE_CHARS


@pytest.mark.parametrize(
    ("limit", "said"),
    [("268435456", ": the pod's limit is 256Mi"), ("max", ""), (str(2**63 - 4096), "")],
)
def test_a_process_killed_for_memory_names_the_limit_and_the_remedy(
    limit: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    memory = MemoryKills(tmp_path)
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    faults = CommandFaults(index=0, memory=memory)
    fault = faults.process_ended(a_process(["MiB 224"]), -9, step=5)
    assert fault.fault_class is FaultClass.OUT_OF_MEMORY
    words = f"out of memory{said}; raise resources.memory"
    assert fault.cause == f"rank 0: {words} [killed by SIGKILL]"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("RuntimeError: DataLoader worker (pid 12) is killed by signal: Killed.", 1),
        ("concurrent.futures.process.BrokenProcessPool: a process terminated abruptly", 1),
        ("run.sh: line 3:    12 Killed                  python3 train.py", 137),
        ("step 9 loss 2.1", 137),
    ],
)
def test_a_child_that_was_killed_for_memory_is_out_of_memory(
    error: str, code: int, tmp_path: Path
) -> None:
    (tmp_path / "memory.max").write_text("268435456\n")
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    faults = CommandFaults(index=0, memory=MemoryKills(tmp_path))
    before = faults.process_ended(a_process([error]), code, step=5)
    assert before.fault_class is FaultClass.APPLICATION
    (tmp_path / "memory.events").write_text("oom_kill 1\n")
    fault = faults.process_ended(a_process([error]), code, step=5)
    assert fault.fault_class is FaultClass.OUT_OF_MEMORY
    assert "the pod's limit is 256Mi; raise resources.memory" in fault.cause


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
    assert lost_peers(lines, error=last_exception(lines))


def test_an_exception_of_the_program_is_its_own_whatever_was_printed_before() -> None:
    lines = ["warning: Connection reset by peer, trying again", *TRACEBACK]
    assert not lost_peers(lines, error=last_exception(lines))
    aborted = ["terminate called after throwing", "what(): remote process exited", "Aborted"]
    assert lost_peers(aborted, error=last_exception(aborted))


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
    faults = CommandFaults(index=0, memory=MemoryKills(tmp_path))
    fault = faults.process_ended(a_process([line]), code, step=5)
    failed = expected == ExitCode.DEVICE
    kind = FaultClass.INFRASTRUCTURE if failed else FaultClass.APPLICATION
    assert (fault.exit_code, fault.fault_class) == (expected, kind)
