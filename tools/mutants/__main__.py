"""`make mutants`: a seeded sample of faults, and how many of them the tests notice.

python -m tools.mutants                      300 of them
python -m tools.mutants --count 30 --seed 7  fewer, others
python -m tools.mutants --only victims       of the modules whose name contains this
python -m tools.mutants --of trainer         of layouts, checkpoints and recovery instead
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
from random import Random

import pytest

from tools.bench.report import FOLDER
from tools.mutants.mutations import Mutant
from tools.mutants.scheduler import SCHEDULER
from tools.mutants.survivors import EXPLAINED
from tools.mutants.target import Target
from tools.mutants.trainer import TRAINER
from tools.mutants.trial import Fate, Faultless, Result, begin, ended, module_name

TARGETS = {"scheduler": SCHEDULER, "trainer": TRAINER}
OPTIONS = ("-qqq", "-s", "-p", "no:cacheprovider")
AT_A_TIME = 2


def main() -> int:
    """Try a sample; 1 if too many survive."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutants")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    parser.add_argument("--of", choices=TARGETS, default="scheduler")
    asked = parser.parse_args()
    target = TARGETS[asked.of]
    chosen = sample(target, count=asked.count, seed=asked.seed, only=asked.only)
    print(f"{asked.of}, seed {asked.seed}: {len(chosen)} mutants", flush=True)
    target.prepare()
    sampled = Sampled(target, chosen)
    command = [*OPTIONS, *target.options, *target.tests]
    if pytest.main(command, plugins=[sampled]) != pytest.ExitCode.OK:
        return 1
    report(sampled, name=asked.of)
    return 0 if score(sampled.results) >= target.goal else 1


def sample(target: Target, *, count: int, seed: int, only: str) -> list[Mutant]:
    """As many mutants of each area, drawn with a seed."""
    random = Random(seed)
    chosen: list[Mutant] = []
    for index, area in enumerate(target.areas):
        mutants = target.mutants(area, only=only)
        share = count // len(target.areas) + (index < count % len(target.areas))
        chosen += random.sample(mutants, min(share, len(mutants)))
    random.shuffle(chosen)
    return chosen


@dataclass(slots=True, eq=False)
class Sampled:
    """In place of pytest's loop over the tests: all of them once, then some for each mutant."""

    target: Target
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
            module_name(path) for area in self.target.areas for path in self.target.modules(area)
        )
        faultless = Faultless(session, modules)
        if failed := faultless.failed:
            print(f"{len(failed)} tests fail without any fault:", *failed[:20], sep="\n  ")
            raise session.Failed("tests fail without any fault")
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
                pid = begin(
                    session,
                    mutant,
                    functions=functions,
                    tests=tests,
                    memory_bytes=self.target.memory_bytes,
                )
                tried[pid] = mutant
            pid, fate, seconds = ended()
            self._note(Result(mutant=tried.pop(pid), fate=fate, seconds=seconds))

    def _note(self, result: Result) -> None:
        self.results.append(result)
        shown = f"{result.fate:9} {result.seconds:5.1f} s  {described(result.mutant)}"
        print(f"{len(self.results):4}/{len(self.mutants)} {shown}"[:200], flush=True)


def report(sampled: Sampled, *, name: str) -> None:
    """Print the score and the survivors; keep them in a file of build/bench."""
    results, target = sampled.results, sampled.target
    fates = Counter(result.fate for result in results)
    print(", ".join(f"{number} {fate}" for fate, number in fates.items()))
    for area in target.areas:
        modules = target.modules(area)
        in_area = [result for result in results if result.mutant.path in modules]
        print(f"{area}: {100 * score(in_area):.1f} % of {len(in_area)}")
    survivors = [result.mutant for result in results if result.fate is Fate.SURVIVED]
    for mutant in sorted(survivors, key=lambda mutant: (mutant.path, mutant.line)):
        print(f"  {described(mutant)}")
        print(f"      {EXPLAINED.get(mutant.change, 'not explained')}")
    print(
        f"score {100 * score(results):.1f} % (goal {100 * target.goal:.0f} %) in "
        f"{sampled.minutes:.1f} min, {sampled.cpu_minutes:.1f} of CPU, "
        f"at a load of {os.getloadavg()[2]:.1f}"
    )
    FOLDER.mkdir(parents=True, exist_ok=True)
    kept = {
        "score": score(results),
        "minutes": sampled.minutes,
        "cpu_minutes": sampled.cpu_minutes,
        "survivors": [described(mutant) for mutant in survivors],
    }
    file = FOLDER / ("mutants.json" if name == "scheduler" else f"mutants-{name}.json")
    file.write_text(json.dumps(kept, indent=2) + "\n")


def score(results: Sequence[Result]) -> float:
    """The part of all mutants that were noticed."""
    return sum(result.fate is not Fate.SURVIVED for result in results) / max(1, len(results))


def described(mutant: Mutant) -> str:
    """File, line and change."""
    return f"{mutant.path.name}:{mutant.line} {mutant.change}"


if __name__ == "__main__":
    sys.exit(main())
