"""How long training stands still for a snapshot of a script's state (`drumline_client`).

    python -m tools.bench.state_snapshots

Each state has the tensors of a GPT-like model of 12 layers with AdamW's moments, in processor
memory; the files are in /dev/shm. The least of all rounds, as the machine may be shared.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from tempfile import mkdtemp

import torch

from drumline_client.environment import RankPlace, SnapshotPlace
from drumline_client.state_snapshots import StateSnapshots

ROUNDS = 7
LAYERS = 12
MEMORY = "/dev/shm"  # noqa: S108 - what is measured


def state_of(width: int) -> dict[str, object]:
    """Model and optimizer after a step, without the time that one takes."""
    shapes = [(4 * width, width), (width, 4 * width), (3 * width, width), (width, width), (width,)]
    model = [torch.randn(shape) for _ in range(LAYERS) for shape in shapes]
    moments = {number: {"m": w.clone(), "v": w.clone()} for number, w in enumerate(model)}
    return {"model": model, "optimizer": moments, "step": 1}


def measure(width: int) -> None:
    """One line: size, standing still, and the seconds until the file is complete."""
    state = state_of(width)
    folder = Path(mkdtemp(dir=MEMORY))
    try:
        snapshots = StateSnapshots(
            SnapshotPlace(folder=folder, generation=1, attempt=0, restore_step=None),
            rank=RankPlace(rank=0, local_rank=0, world_size=1),
            deliver=lambda _: None,
        )
        still, whole = [], []
        for step in range(ROUNDS):
            started = time.monotonic()
            still.append(snapshots.take(step, state))
            snapshots.finish()
            whole.append(time.monotonic() - started)
        size = next(folder.rglob("*.snapshot")).stat().st_size
        begun = time.monotonic()
        again = StateSnapshots(
            SnapshotPlace(folder=folder, generation=1, attempt=1, restore_step=ROUNDS - 1),
            rank=RankPlace(rank=0, local_rank=0, world_size=1),
            deliver=lambda _: None,
        )
        again.restore(state)
        restored = time.monotonic() - begun
    finally:
        shutil.rmtree(folder)
    print(
        f"{size / 1e6:7.1f} MB: still {1e3 * min(still[1:]):7.2f} ms,"
        f" the first time {1e3 * still[0]:7.2f} ms,"
        f" file after {min(whole):6.3f} s, restored {restored:6.3f} s",
        flush=True,
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    for width in (64, 256):
        measure(width)
