"""Launchers inside a rank: a script under `launch: PerGpu` that starts torchrun.

Each rank would then train a model of its own, and all of them would write the same files. The
workers of torchrun and accelerate show it by their environment: another WORLD_SIZE than the rank's,
and a run id of torch elastic. A child that a rank starts for a task of its own has no such id.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from drumline_agent.commands.process_activity import process_tree

_MAX_ENVIRONMENT_BYTES: Final = 262_144
_MAX_PROCESSES: Final = 256
"""Maximum number of processes of one rank that are examined."""


def nested_world_size(
    root: int,
    *,
    world_size: int,
    run_id: str,
    processes: Mapping[int, tuple[int, float]],
    folder: Path = Path("/proc"),
) -> int | None:
    """Return the world size of a launcher's worker below a rank; None without one.

    Args:
        root: process id of the rank.
        world_size: the rank's own.
        run_id: the rank's own TORCHELASTIC_RUN_ID, which its children inherit.
        processes: the parent and the processor seconds of each process, by process id.
        folder: folder of the kernel's process files.
    """
    for pid in process_tree(root, processes)[1:_MAX_PROCESSES]:
        worker = _launched(folder / str(pid) / "environ")
        if worker is not None and worker[0] != world_size and worker[1] != run_id.encode():
            return worker[0]
    return None


def _launched(path: Path) -> tuple[int, bytes] | None:
    """Return the world size and the run id of a worker; None for any other process."""
    with suppress(OSError, ValueError), path.open("rb") as opened:
        entries = opened.read(_MAX_ENVIRONMENT_BYTES).split(b"\0")
        values = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        if b"WORLD_SIZE" in values and b"TORCHELASTIC_RUN_ID" in values:
            return int(values[b"WORLD_SIZE"]), values[b"TORCHELASTIC_RUN_ID"]
    return None
