"""Rows of a bench: printed as a table, kept as build/bench/NAME.json."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "build" / "bench"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure."""

    name: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None
    peer: str = ""
    source: str = "measured in this run"


def machine() -> str:
    """What the figures were measured on."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} x {model}, {memory:.0f} GiB, Python {platform.python_version()}"


def publish(name: str, rows: list[Row], *, command: str = "") -> None:
    """Print the rows and write build/bench/<name>.json."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    whole: dict[str, Any] = {"machine": machine(), "rows": [asdict(row) for row in rows]}
    if command:
        whole = {"command": command, **whole}
    (FOLDER / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n")
    print(f"\n{name}: {machine()}{command and f', {command}'}")
    header = ("figure", "value", "goal", "", "peers")
    cells = [header] + [
        (
            row.name,
            f"{row.value:.3g} {row.unit}",
            row.goal,
            {None: "", True: "met", False: "MISSED"}[row.met],
            row.peer,
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    print(f"written to build/bench/{name}.json", flush=True)
