"""`make mutants`: a seeded sample of faults, and how many of them the tests notice.

python -m tests.mutants                      300 of them
python -m tests.mutants --count 30 --seed 7  fewer, others
python -m tests.mutants --only victims       of the modules whose name contains this
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from tests.bench.report import FOLDER
from tests.mutants.mutations import Mutant, mutants_of
from tests.mutants.survivors import EXPLAINED
from tests.mutants.trial import Fate, Faultless, Result, begin, ended, module_name

ROOT = Path(__file__).parents[2]
ROOM = ROOT / "operator" / "drumline" / "scheduling"
AREAS = {
    "quota": ("quota_ledger", "cohorts", "user_limits", "preemption_policy", "pool_selection"),
    "placement": (
        *("best_fit", "packing", "slots", "topology", "slicing", "role_placement", "frontier"),
        *("spreading", "placer", "search"),
    ),
    "preemption": (
        *("preemptor", "victims", "candidates", "bounds", "eviction_simulation", "node_costs"),
        *("surplus", "projection"),
    ),
}
UNIT, PROPERTY = "tests/unit/scheduling", "tests/property/test_scheduling"
OPTIMUM = f"{PROPERTY}_optimum.py"
QUOTA_REJECTIONS = f"{UNIT}/quota/test_quota_rejections.py"
DEFRAGMENTATION = f"{UNIT}/preemption/test_defragmentation.py"
TESTS = (
    UNIT,
    f"{PROPERTY}_pairs.py",
    f"{PROPERTY}_preemption_policy.py",
    f"{PROPERTY}_preemption.py::test_a_world_in_which_nothing_happens_calms_down",
    *(
        f"{OPTIMUM}::{name}[{part}]"
        for name in (
            "test_a_placement_is_the_best_of_all_and_a_refusal_is_true",
            "test_victims_cost_no_more_than_the_cheapest_lawful_ones",
        )
        for part in range(2)
    ),
)
"""What one CPU does in half a minute; a mutant meets those that reach its function."""
SLOW = (
    f"{UNIT}/test_forecast.py",
    f"{UNIT}/quota/test_ordering_fair.py",
    f"{QUOTA_REJECTIONS}::test_every_remedy_of_quota_is_true_and_the_smallest",
    f"{DEFRAGMENTATION}::test_used_racks_stay_near_what_the_demand_needs_under_churn",
)
"""Of the room's tests; none is about quota, placement or preemption alone."""
OPTIONS = ("-qqq", "-s", "-p", "no:cacheprovider", *(f"--deselect={name}" for name in SLOW))
GOAL = 0.8
AT_A_TIME = 2


def main() -> int:
    """Try a sample; 1 if too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    chosen = sample(count=asked.count, seed=asked.seed, only=asked.only)
    print(f"seed {asked.seed}: {len(chosen)} mutants", flush=True)
    sampled = Sampled(chosen)
    if pytest.main([*OPTIONS, *TESTS], plugins=[sampled]) != pytest.ExitCode.OK:
        return 1
    report(sampled)
    return 0 if score(sampled.results) >= GOAL else 1


def sample(*, count: int, seed: int, only: str) -> list[Mutant]:
    """As many mutants of each area, drawn with a seed."""
    random = Random(seed)
    chosen: list[Mutant] = []
    for place, modules in enumerate(AREAS.values()):
        found = [
            mutant for name in modules if only in name for mutant in mutants_of(module_path(name))
        ]
        share = count // len(AREAS) + (place < count % len(AREAS))
        chosen += random.sample(found, min(share, len(found)))
    random.shuffle(chosen)
    return chosen


def module_path(name: str) -> Path:
    """Where a module of the scheduler is, in whichever of its rooms."""
    (path,) = ROOM.rglob(f"{name}.py")
    return path


@dataclass(slots=True, eq=False)
class Sampled:
    """In place of pytest's loop over the tests: all of them once, then some for each mutant."""

    mutants: Sequence[Mutant]
    results: list[Result] = field(default_factory=list)
    minutes: float = 0.0
    """On the wall."""
    cpu_minutes: float = 0.0
    """Of all processes."""

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("not all tests could be collected")
        started = time.monotonic()
        modules = frozenset(
            module_name(module_path(name)) for names in AREAS.values() for name in names
        )
        faultless = Faultless(session, modules)
        if not faultless.passed:
            raise session.Failed("without any fault a test fails")
        spent = sum(reach.seconds for reach in faultless.reach)
        print(f"{len(session.items)} tests, {spent:.0f} s without any fault", flush=True)
        self._try_all(session, faultless)
        self.minutes = (time.monotonic() - started) / 60
        self.cpu_minutes = sum(os.times()[:4]) / 60
        return True

    def _try_all(self, session: pytest.Session, faultless: Faultless) -> None:
        """What becomes of each, some at a time."""
        waiting, tried = list(self.mutants), dict[int, Mutant]()
        while waiting or tried:
            while waiting and len(tried) < AT_A_TIME:
                mutant = waiting.pop(0)
                functions = faultless.functions[module_name(mutant.path), mutant.function]
                tests = faultless.tests_of(mutant)
                tried[begin(session, mutant, functions=functions, tests=tests)] = mutant
            pid, fate, seconds = ended()
            self._note(Result(mutant=tried.pop(pid), fate=fate, seconds=seconds))

    def _note(self, result: Result) -> None:
        self.results.append(result)
        shown = f"{result.fate:9} {result.seconds:5.1f} s  {told(result.mutant)}"
        print(f"{len(self.results):4}/{len(self.mutants)} {shown}"[:200], flush=True)


def report(sampled: Sampled) -> None:
    """Print the score and the survivors; keep them in build/bench/mutants.json."""
    results = sampled.results
    fates = Counter(one.fate for one in results)
    print(", ".join(f"{number} {fate}" for fate, number in fates.items()))
    for area, modules in AREAS.items():
        here = [one for one in results if one.mutant.path.stem in modules]
        print(f"{area}: {100 * score(here):.1f} % of {len(here)}")
    survivors = [one.mutant for one in results if one.fate is Fate.SURVIVED]
    for mutant in sorted(survivors, key=lambda one: (one.path, one.line)):
        print(f"  {told(mutant)}")
        print(f"      {EXPLAINED.get(mutant.change, 'not explained')}")
    print(
        f"score {100 * score(results):.1f} % (goal {100 * GOAL:.0f} %) in "
        f"{sampled.minutes:.1f} min, {sampled.cpu_minutes:.1f} of CPU, "
        f"at a load of {os.getloadavg()[2]:.1f}"
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = {
        "score": score(results),
        "minutes": sampled.minutes,
        "cpu_minutes": sampled.cpu_minutes,
        "survivors": [told(one) for one in survivors],
    }
    (FOLDER / "mutants.json").write_text(json.dumps(kept, indent=2) + "\n")


def score(results: Sequence[Result]) -> float:
    """The part of all mutants that were noticed."""
    return sum(one.fate is not Fate.SURVIVED for one in results) / max(1, len(results))


def told(mutant: Mutant) -> str:
    """File, line and change."""
    return f"{mutant.path.name}:{mutant.line} {mutant.change}"


if __name__ == "__main__":
    sys.exit(main())
