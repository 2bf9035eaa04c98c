"""What the machine has: looked at by a child, as no parent of ranks may have used CUDA."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NEEDED = ("torch", "numpy", "safetensors", "xxhash")
_LOOK = """
import json, torch
gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
seen = {"torch": torch.__version__, "cuda": torch.version.cuda, "count": gpus}
if gpus:
    one = torch.cuda.get_device_properties(0)
    free = min(torch.cuda.mem_get_info(n)[0] for n in range(gpus))
    seen |= {"name": one.name, "memory_bytes": one.total_memory, "free_bytes": free}
    seen["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    seen["capability"] = list(torch.cuda.get_device_capability(0))
print(json.dumps(seen))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the checks run."""

    device: str
    """`gpu`, or `cpu`: the same checks, smaller."""
    ranks: int
    """GPUs, or processes on processors."""
    name: str
    memory_bytes: int
    """Of a GPU."""
    seen: dict[str, Any]

    @property
    def on_gpu(self) -> bool:
        """Whether figures of speed mean anything."""
        return self.device == "gpu"

    @property
    def environment(self) -> dict[str, str]:
        """Of every process that a check starts."""
        paths = [ROOT / "operator", ROOT / "trainer", ROOT]
        known = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([*map(str, paths), *known]),
            "PYTHONUNBUFFERED": "1",
            "DRUMLINE_DEVICE": self.device,
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        }


def missing_packages() -> list[str]:
    """What this Python lacks; nothing is downloaded."""
    return [name for name in NEEDED if find_spec(name) is None]


def look() -> dict[str, Any]:
    """What torch sees here."""
    done = subprocess.run(
        [sys.executable, "-c", _LOOK], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:]
        return {"count": 0, "trouble": last[0] if last else f"exit code {done.returncode}"}
    return json.loads(done.stdout)


def this_machine(device: str, *, seen: dict[str, Any]) -> Machine | None:
    """None: it has no GPU, and one was asked for."""
    if device == "cpu":
        return Machine(device="cpu", ranks=2, name="processors", memory_bytes=0, seen=seen)
    if not seen["count"]:
        return None
    return Machine(
        device="gpu",
        ranks=min(8, seen["count"]),
        name=seen["name"],
        memory_bytes=seen["memory_bytes"],
        seen=seen,
    )
