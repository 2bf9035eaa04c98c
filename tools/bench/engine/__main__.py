"""`python -m tools.bench.engine [GROUP...]`: all figures of the engine, or some groups of them.

Each group runs in a process of its own, so that its memory is its own; what they measured stands in
build/bench/engine.json afterwards. Python looks for cycles of objects as often as in the operator.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from drumline.app.process import YOUNG_OBJECTS
from tools.bench.engine import growth, kai, native, simulated, steady, virtual, waiting_line
from tools.bench.engine.shape import measure
from tools.bench.report import Row, publish

GROUPS: dict[str, Callable[[], list[Row]]] = {
    "native": lambda: [measure(shape) for shape in native.shapes()],
    "kai": lambda: [measure(shape) for shape in kai.shapes()],
    "steady": steady.rows,
    "growth": growth.rows,
    "virtual": virtual.rows,
    "simulated": simulated.rows,
    "line": waiting_line.rows,
}
_MARK = "rows: "


def main() -> None:
    """Measure the groups that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.engine")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=", ".join(GROUPS))
    parser.add_argument("--alone", choices=GROUPS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.alone:
        gc.set_threshold(YOUNG_OBJECTS)
        rows = GROUPS[asked.alone]()
        print(_MARK + json.dumps([asdict(row) for row in rows]), flush=True)
        return
    if unknown := set(asked.groups) - set(GROUPS):
        parser.error(f"no group {min(unknown)}; known: {', '.join(GROUPS)}")
    results = [row for name in asked.groups or GROUPS for row in _apart(name)]
    publish("engine" if not asked.groups else f"engine_{'_'.join(asked.groups)}", results)


def _apart(group: str) -> list[Row]:
    """The rows of a group, measured in a process of its own."""
    print(f"measuring {group}", flush=True)
    command = [sys.executable, "-m", "tools.bench.engine", "--alone", group]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results: list[Row] = []
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            results = [Row(**load) for load in json.loads(line.removeprefix(_MARK))]
        else:
            print(line)
    return results


if __name__ == "__main__":
    main()
