"""`make test-all WHAT=layouts`: every layout against one process; it fails if one differs.

python -m tests.layouts               all of them
python -m tests.layouts --cases 100   so many, at random by --seed
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.bench.report import FOLDER, machine
from tests.layouts.cases import every_case
from tests.layouts.pool import LayoutError
from tests.layouts.runs import Runs, failings

FILE = FOLDER / "layouts.json"


def main() -> int:
    """Run them; 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.layouts", description=__doc__)
    parser.add_argument("--cases", type=int, default=0, help="so many at random; 0: all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cases = every_case()
    random.Random(options.seed).shuffle(cases)
    cases = cases[: options.cases or len(cases)]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(folder=Path(folder))
        for number, case in enumerate(cases, start=1):
            began = time.monotonic()
            try:
                wrong = failings(runs.whole(case), runs.plain(case))
            except LayoutError as error:
                wrong = [str(error)]
            seconds = time.monotonic() - began
            rows.append({"layout": case.name, "seconds": round(seconds, 1), "wrong": wrong})
            verdict = "; ".join(wrong) or "exact"
            print(f"{number}/{len(cases)}  {seconds:5.1f} s  {case.name}  {verdict}", flush=True)
            _write(rows)
        runs.pool.close()
    bad = sum(bool(row["wrong"]) for row in rows)
    print(f"{len(rows) - bad} of {len(rows)} layouts train what one process trains")
    return 1 if bad else 0


def _write(rows: list[dict[str, Any]]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    FILE.write_text(json.dumps({"machine": machine(), "layouts": rows}, indent=1))


if __name__ == "__main__":
    sys.exit(main())
