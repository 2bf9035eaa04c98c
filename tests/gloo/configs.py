"""Small configurations, and the text they train on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drumline_contract.config import TrainerConfig, merge

SMALL: dict[str, Any] = {
    # 258 and 36 rows do not split evenly over four ranks, the norms' 12 over eight do not either
    "model": {
        "vocab_size": 258,
        "layers": 2,
        "hidden_size": 12,
        "ffn_size": 36,
        "heads": 2,
        "kv_heads": 1,
    },
    "data": {"sequence_length": 16},
    "optimizer": {"warmup_steps": 2},
    "checkpoint": {"every_steps": 4, "keep": 2},
    "steps": 10,
    "global_batch_size": 4,
    "heartbeat_seconds": 1e-9,
    "log_every_steps": 5,
}


def small(text: Path, **changes: Any) -> TrainerConfig:
    """A model of a few thousand weights that trains on the text in `text`."""
    raw = merge(SMALL, {"data": {"source": str(write_text(text))}})
    return TrainerConfig.from_dict(merge(raw, changes))


def write_text(folder: Path) -> Path:
    """A folder with a little text, the same each time."""
    folder.mkdir(exist_ok=True)
    if not (folder / "a.py").exists():
        (folder / "a.py").write_bytes(bytes(i * i % 251 for i in range(4000)))
        (folder / "b.py").write_bytes(b"def f(x): return x + 1\n" * 40)
    return folder
