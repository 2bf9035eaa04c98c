"""`make mutants`: a seeded sample of faults, and how many of them the tests notice.

python -m tests.mutants                      300 of them
python -m tests.mutants --count 30 --seed 7  fewer, others
python -m tests.mutants --only victims       of the modules whose name contains this
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import hypothesis
import numpy as np

from tests.bench.report import FOLDER
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.survivors import EXPLAINED
from tests.mutants.trial import Fate, Result, Trial, begin, finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """Modules, and the tests that are about what they do."""

    name: str
    modules: tuple[str, ...]
    tests: tuple[str, ...]


ROOT = Path(__file__).parents[2]
ROOM = ROOT / "operator" / "drumline" / "scheduling"
UNIT, PROPERTY = "tests/unit/scheduling", "tests/property"
PAIRS = f"{PROPERTY}/test_scheduling_pairs.py"
BEST = (
    f"{PROPERTY}/test_scheduling_optimum.py::"
    "test_a_placement_is_the_best_of_all_and_a_refusal_is_true"
)
CHEAPEST = (
    f"{PROPERTY}/test_scheduling_preemption.py::"
    "test_few_candidates_are_chosen_at_the_least_cost_there_is"
)
AREAS = (
    Area(
        name="quota",
        modules=("quota", "cohorts", "caps", "claim", "pools"),
        tests=(
            *(f"{UNIT}/test_{name}.py" for name in ("cohorts", "claim", "pools", "shortage")),
            *(f"{UNIT}/test_{name}.py" for name in ("reasons", "cycle", "preemption", "elastic")),
            *(f"{UNIT}/test_{name}.py" for name in ("ordering", "fairshare", "peer_scenarios")),
            f"{PROPERTY}/test_scheduling_claim.py",
            PAIRS,
        ),
    ),
    Area(
        name="placement",
        modules=(
            *("placement", "packing", "slots", "topology", "slicing", "roles", "frontier"),
            *("spreading", "seating", "search"),
        ),
        tests=(
            *(f"{UNIT}/test_{name}.py" for name in ("placement", "slices", "roles", "spreading")),
            *(f"{UNIT}/test_{name}.py" for name in ("repair", "remedies", "reasons", "cycle")),
            PAIRS,
            *(f"{BEST}[{part}]" for part in range(3)),
        ),
    ),
    Area(
        name="preemption",
        modules=(
            *("preemption", "victims", "candidacy", "bounds", "trial", "pricing", "surplus"),
            "horizon",
        ),
        tests=(
            *(f"{UNIT}/test_{name}.py" for name in ("preemption", "elastic", "peer_scenarios")),
            *(f"{UNIT}/test_{name}.py" for name in ("repair", "migration", "cycle")),
            PAIRS,
            CHEAPEST,
        ),
    ),
)
GOAL = 0.8
AT_A_TIME = 2
Tried = tuple[Mutant, tuple[str, ...]]
"""A mutant, and the tests that should notice it."""


def main() -> int:
    """Try a sample; 1 if too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    if broken := [area.name for area in AREAS if not passes(area)]:
        print(f"without any fault the tests of {broken} fail")
        return 1
    warm = f"hypothesis {hypothesis.__version__}, numpy {np.__version__}"
    chosen = sample(count=asked.count, seed=asked.seed, only=asked.only)
    print(f"seed {asked.seed}: {len(chosen)} mutants ({warm})", flush=True)
    started = time.monotonic()
    results = try_all(chosen)
    report(results, minutes=(time.monotonic() - started) / 60)
    return 0 if score(results) >= GOAL else 1


def passes(area: Area) -> bool:
    """Whether the area's tests pass, in a child like all others, while nothing is wrong."""
    trial = begin(None, tests=area.tests)
    while (result := finished([trial])) is None:
        time.sleep(0.05)
    print(f"{area.name}: {result.seconds:.0f} s without any fault", flush=True)
    return result.fate is Fate.SURVIVED


def sample(*, count: int, seed: int, only: str) -> list[Tried]:
    """As many mutants of each area, drawn with a seed."""
    random = Random(seed)
    chosen: list[Tried] = []
    for place, area in enumerate(AREAS):
        found = [
            (mutant, area.tests)
            for name in area.modules
            if only in name
            for mutant in mutants_of(ROOM / f"{name}.py")
        ]
        share = count // len(AREAS) + (place < count % len(AREAS))
        chosen += random.sample(found, min(share, len(found)))
    random.shuffle(chosen)
    return chosen


def try_all(mutants: Sequence[Tried]) -> list[Result]:
    """What becomes of each, some at a time."""
    waiting, trials, results = list(mutants), list[Trial](), list[Result]()
    while waiting or trials:
        while waiting and len(trials) < AT_A_TIME:
            mutant, tests = waiting.pop(0)
            trials.append(begin(mutant, tests=tests))
        result = finished(trials)
        if result is None:
            time.sleep(0.05)  # two children to wait for, and no event for whichever ends first
            continue
        trials = [one for one in trials if one.mutant is not result.mutant]
        results.append(result)
        shown = f"{result.fate:9} {result.seconds:5.1f} s  {told(result.mutant)}"
        print(f"{len(results):4}/{len(mutants)} {shown}"[:200], flush=True)
    return results


def report(results: Sequence[Result], *, minutes: float) -> None:
    """Print the score and the survivors; keep them in build/bench/mutants.json."""
    fates = Counter(result.fate for result in results)
    print(", ".join(f"{number} {fate}" for fate, number in fates.items()))
    survivors = [one.mutant for one in results if one.mutant and one.fate is Fate.SURVIVED]
    for mutant in sorted(survivors, key=lambda one: (one.path, one.line)):
        print(f"  {told(mutant)}")
        print(f"      {EXPLAINED.get(mutant.change, 'not explained')}")
    print(f"score {100 * score(results):.1f} % in {minutes:.1f} min (goal {100 * GOAL:.0f} %)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = {
        "score": score(results),
        "minutes": minutes,
        "survivors": [told(one) for one in survivors],
    }
    (FOLDER / "mutants.json").write_text(json.dumps(kept, indent=2) + "\n")


def score(results: Sequence[Result]) -> float:
    """The part of all mutants that were noticed."""
    return sum(one.fate is not Fate.SURVIVED for one in results) / max(1, len(results))


def told(mutant: Mutant | None) -> str:
    """File, line and change."""
    return f"{mutant.path.name}:{mutant.line} {mutant.change}" if mutant else ""


if __name__ == "__main__":
    sys.exit(main())
