"""One cell on the stage: a gang of its own from its first record to its end, and what was seen."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline_contract import Incident
from drumline_trainer.metrics.losses import LOSSES_FILE
from tests.faults.agent.gang import Gang
from tests.faults.agent.warm import WarmBand, WarmStarter
from tests.gloo.stored import whole_tensors
from tests.matrix.cells import Cell, Fault
from tests.matrix.diary import DIARIES, PIDS, STRUCK, Diary, Mark, read_mark
from tests.matrix.standin import Ending, StandIn
from tests.matrix.strikes import (
    BACKEND,
    CHECKPOINT_EVERY,
    FOLDER,
    MAIN,
    MUTANT,
    NEWEST_CHECKPOINT,
    STEPS,
    STRIKES,
    Backend,
    Strike,
    encode,
    strikes_of,
)
from tests.matrix.warm import STRIKING
from tests.patience import HANG_SECONDS

CONFIG: dict[str, Any] = {
    # rows that do not split evenly over four ranks
    "model": {
        "vocab_size": 258,
        "layers": 2,
        "hidden_size": 12,
        "ffn_size": 36,
        "heads": 2,
        "kv_heads": 1,
        "dropout": 0.1,
    },
    "data": {"sequence_length": 16},
    "optimizer": {"warmup_steps": 2},
    "checkpoint": {
        "every_steps": CHECKPOINT_EVERY,
        "keep": 3,
        "snapshot_every_steps": 2,
        "asynchronous": False,  # so that it is certain which checkpoint there is at every moment
    },
    "steps": STEPS,
    "global_batch_size": 4,
    "heartbeat_seconds": 0.05,
    "log_every_steps": 4,
}
FOLDERS = (DIARIES, PIDS, STRUCK, "checkpoints")
"""What the folder of a cell is made of."""
AWAY_SECONDS = 10.0
HANG_TIMEOUT_SECONDS = 10.0
"""Where nobody is behind the others, a gang's silence is all that shows: minutes by default."""
DISK_BYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything a verdict on a cell is made from."""

    ending: Ending | None
    """None: it did not end in time."""
    diary: Diary
    mark: Mark | None
    """When the fault struck; None: it never did."""
    losses_file: bytes
    weights: dict[str, bytes] | None
    """Tensors of the final checkpoint; None: there is none."""
    incidents: tuple[Incident, ...]
    """The closed ones that agents logged, once each, by number."""
    output: str
    """What all agents printed."""
    seconds: float


class NotHereError(RuntimeError):
    """The machine does not let this cell be performed."""


async def perform(
    cell: Cell | None,
    *,
    starter: WarmStarter,
    mutant: str = "",
    backend: Backend = Backend.GLOO,
) -> Observation:
    """Run a cell to its end; None for the undisturbed run.

    Args:
        cell: what happens.
        starter: forks the agents.
        mutant: name of a mistake that the trainer is given (`tests.gloo.mutants`).
        backend: what the ranks talk over.

    Raises:
        NotHereError: the cell needs a small file system, and none may be mounted.
    """
    folder = Path(tempfile.mkdtemp(prefix="drumline-cell-"))
    for name in FOLDERS:
        (folder / name).mkdir()
    small_disk = cell is not None and cell.fault is Fault.DISK_FULL
    try:
        with _small_disk(folder / "checkpoints", wanted=small_disk):
            variables = variables_of(
                folder, strikes=strikes_of(cell) if cell else (), mutant=mutant, backend=backend
            )
            return await _perform(cell, folder=folder, starter=starter, variables=variables)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _perform(
    cell: Cell | None, *, folder: Path, starter: WarmStarter, variables: dict[str, str]
) -> Observation:
    gang = Gang(band=WarmBand(folder=folder, starter=starter))
    started = time.monotonic()
    ending = None
    async with StandIn(gang=gang, variables=variables, **_circumstances(cell)) as operator:
        try:
            async with asyncio.timeout(HANG_SECONDS):
                ending = await operator.run()
        except TimeoutError:
            pass  # said by `ending`
    return Observation(
        ending=ending,
        diary=Diary.read(folder),
        mark=read_mark(folder, MAIN),
        losses_file=_bytes_of(folder / "checkpoints" / LOSSES_FILE),
        weights=_weights(folder / "checkpoints" / f"step-{STEPS:08d}"),
        incidents=_incidents(gang),
        output="\n".join(f"--- {agent.pod_uid}\n{agent.text}" for agent in gang.band.agents),
        seconds=time.monotonic() - started,
    )


def variables_of(
    folder: Path,
    *,
    strikes: tuple[Strike, ...] = (),
    mutant: str = "",
    backend: Backend = Backend.GLOO,
    config: dict[str, Any] = CONFIG,
) -> dict[str, str]:
    """What the pods of a cell have in their environment beside what an operator puts there."""
    return {
        "DRUMLINE_CONFIG": json.dumps(config),
        "DRUMLINE_CHECKPOINT_FOLDER": str(folder / "checkpoints"),
        "DRUMLINE_RANK_MODULE": STRIKING,
        "DRUMLINE_TEARDOWN_SECONDS": "2",
        FOLDER: str(folder),
        STRIKES: encode(strikes),
        MUTANT: mutant,
        BACKEND: backend,
    }


def _circumstances(cell: Cell | None) -> dict[str, Any]:
    """What the stand-in for the operator and the kubelets has to know of the cell."""
    if cell is None:
        return {}
    dies_with_its_kubelet = cell.fault in {
        Fault.NODE_DEAD,
        Fault.CHECKPOINT_CORRUPT,
        Fault.ACKNOWLEDGED_LOST,
    }
    return {
        "unreported": cell.role.pods if dies_with_its_kubelet else (),
        "zombies": cell.fault is Fault.MACHINE_PAUSED,
        "away_seconds": AWAY_SECONDS if cell.fault is Fault.OPERATOR_AWAY else 0.0,
        "hang_timeout_seconds": (HANG_TIMEOUT_SECONDS if cell.fault is Fault.LINK_LOST else None),
        "listens": cell.fault is Fault.ACKNOWLEDGED_LOST,
        "forgets_checkpoints_from": (
            NEWEST_CHECKPOINT if cell.fault is Fault.CHECKPOINT_CORRUPT else None
        ),
    }


def _incidents(gang: Gang) -> tuple[Incident, ...]:
    """All agents log the same ones; the last word about each counts."""
    results = {
        (incident.generation, incident.attempt): incident
        for agent in gang.band.agents
        for event in agent.events("incident")
        for incident in [Incident.parse(event["incident"])]
    }
    return tuple(incident for _, incident in sorted(results.items()))


def _weights(folder: Path) -> dict[str, bytes] | None:

    if not folder.is_dir():
        return None
    return {name: tensor.tobytes() for name, tensor in whole_tensors(folder).items()}


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


@contextmanager
def _small_disk(folder: Path, *, wanted: bool) -> Iterator[None]:
    """Mount a file system of a few megabytes there."""
    if not wanted:
        yield
        return
    options = f"size={DISK_BYTES}"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        raise NotHereError(f"mounting a small disk: {mounted.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
