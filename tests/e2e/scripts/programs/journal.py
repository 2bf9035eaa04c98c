"""What the programs beside it write down, for the test that compares: standard library only.

`RUN_FOLDER` is the run's, on storage. While it has a file `paced`, each step takes `PACE_SECONDS`
longer, or as many seconds as the file says.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ["RUN_FOLDER"])
RANK = int(os.environ["RANK"])
STEPS = int(os.environ["STEPS"])
EVERY = int(os.environ["SAVED_EVERY"])
SNAPSHOT_EVERY = int(os.environ["SNAPSHOT_EVERY"])
LEVEL = os.environ.get("CLIENT", "L0")
"""L0: nothing of ours. L1: the lines of the client. L2: its snapshots, too."""
PACE_SECONDS = 0.2
_LIFE = f"{socket.gethostname()}/{time.time_ns()}"


def began() -> None:
    """This rank's process is there."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    place = {"rank": RANK, "pid": os.getpid(), "pod": socket.gethostname()}
    _append("processes.jsonl", {**place, "generation": 0, "attempt": attempt})


def finished(step: int, loss: float) -> None:
    """A step is done; its loss to the last bit."""
    if RANK == 0:
        line = {"step": step, "loss": float(loss).hex(), "life": _LIFE, "at": time.time()}
        _append("metrics.jsonl", {**line, "ranks": int(os.environ["WORLD_SIZE"])})
    paced = FOLDER / "paced"
    if paced.exists():
        time.sleep(float(paced.read_text() or PACE_SECONDS))


def trained(weights: dict[str, Any]) -> None:
    """The run is complete: a digest of its tensors."""
    if RANK == 0:
        digest = hashlib.sha256()
        for name in sorted(weights):
            digest.update(name.encode())
            digest.update(weights[name].detach().contiguous().numpy().tobytes())
        (FOLDER / "weights").write_text(digest.hexdigest())


def _append(name: str, line: dict[str, Any]) -> None:
    """In one write: the ranks share the files."""
    with (FOLDER / name).open("a") as file:
        file.write(json.dumps(line) + "\n")
