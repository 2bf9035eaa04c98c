"""`make test-all WHAT=layouts`: every layout against one process; it fails if one differs.

python -m tests.layouts                    all of them
python -m tests.layouts --cases 100        so many, at random by --seed
python -m tests.layouts --settings         every setting beside every value of every axis
python -m tests.layouts --settings --only lora    the cells whose name contains this
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.layouts.cases import Case, every_case
from tests.layouts.judge import failings
from tests.layouts.pool import LayoutError
from tests.layouts.runs import Runs
from tests.layouts.setting_table import SETTINGS
from tests.layouts.settings import cells_of
from tools.bench.report import FOLDER, machine

Row = dict[str, Any]


def main() -> int:
    """Run them; 1 if one is wrong."""
    options = _options()
    cases = every_case()
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(folder=Path(folder))
        checks = _of_settings(runs, cases, options) if options.settings else _of(runs, cases)
        chosen = [check for check in checks if options.only in check[0]]
        random.Random(options.seed).shuffle(chosen)
        rows = _perform(
            chosen[: options.cases or len(chosen)],
            file=FOLDER / ("settings.json" if options.settings else "layouts.json"),
        )
        runs.pool.close()
    bad = sum(bool(row["wrong"]) for row in rows)
    print(f"{len(rows) - bad} of {len(rows)} layouts train what one process trains")
    return 1 if bad else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.layouts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--settings", action="store_true", help="settings in layouts")
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--cases", type=int, default=0, help="so many at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


Check = tuple[str, Callable[[], list[str]]]
"""A name, and what is wrong."""


def _of(runs: Runs, cases: Sequence[Case]) -> list[Check]:
    def check(case: Case) -> Check:
        return case.name, lambda: failings(runs.whole(case), runs.plain(case))

    return [check(case) for case in cases]


def _of_settings(runs: Runs, cases: Sequence[Case], options: argparse.Namespace) -> list[Check]:
    cells = [
        cell
        for setting in SETTINGS.values()
        for cell in cells_of(setting, cases=cases, seed=options.seed)
    ]
    return [(cell.name, partial(runs.failings_of, cell)) for cell in cells]


def _perform(checks: list[Check], *, file: Path) -> list[Row]:
    rows: list[Row] = []
    for number, (name, check) in enumerate(checks, start=1):
        began = time.monotonic()
        try:
            wrong = check()
        except LayoutError as error:
            wrong = [str(error).strip().splitlines()[-1]]
        seconds = time.monotonic() - began
        rows.append({"layout": name, "seconds": round(seconds, 1), "wrong": wrong})
        verdict = "; ".join(wrong) or "exact"
        print(f"{number}/{len(checks)}  {seconds:5.1f} s  {name}  {verdict}", flush=True)
        _write(rows, file)
    return rows


def _write(rows: list[Row], file: Path) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"machine": machine(), "layouts": rows}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
