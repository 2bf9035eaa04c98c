"""Every state of a tiny cluster that some order of steps leads to.

What keeps the number of states and of real steps small, without leaving out a behaviour:

* States hash by content. Epochs count as "this leader's" and "an earlier one's", which is all that
  is asked of them.
* A reconcile, and what kubelets do to one job, neither read nor write another job: what they lead
  to is computed once for each state of that job, and `test_exploration` holds that against whole
  clusters. Steps that commute are not computed again; every order of them is visited all the same.
* A cycle of the scheduler reads jobs and pods, no other children: it is computed once for those.
* One run of a step gives all the ends in its middle, too.

Nodes are not taken for interchangeable: the scheduler breaks ties by their names.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tests.property import tiny_operator
from tests.property.tiny_cluster import JobState, helped, troubled, wrong_between, wrong_in
from tests.property.tiny_operator import States, Taken

Numbers = tuple[int, ...]
Result = TypeVar("Result")


class Situation(NamedTuple):
    """One state of the whole."""

    jobs: Numbers
    """Each job's state by its number; 0: it is not submitted yet."""
    crashes: int = 0
    """Operators that have ended in the middle of a step."""
    faults: int = 0
    """Pods that have failed or vanished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What may happen in one history."""

    crashes: int
    faults: int
    quota: int
    """GPUs of the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What leads from one situation to the next."""

    actor: str
    """"scheduler", "reconciler", "crash", "kubelet", "fault" or "user"."""
    job: str
    after: Situation


ALONE = frozenset({"scheduler", "reconciler"})
HELPFUL = ALONE | {"kubelet"}


class Wrong(AssertionError):  # noqa: N818 - a finding
    """Something does not hold."""


@dataclass(kw_only=True)
class Exploration:
    """See the module.

    Args:
        submitted: jobs that are there from the beginning, by name.
        coming: jobs that are submitted at any time.
        bounds: how much may go wrong.
    """

    submitted: Mapping[str, JobState]
    coming: Mapping[str, JobState]
    bounds: Bounds
    steps: Counter[str] = field(default_factory=Counter[str])
    """By actor."""
    computed: int = 0
    """Steps that the real operator took."""

    def __post_init__(self) -> None:
        self.names = (*self.submitted, *self.coming)
        self._numbers: dict[JobState, int] = {}
        self._states: list[JobState] = [JobState("")]
        self._memory: dict[Hashable, object] = {}
        self._came: dict[Situation, tuple[Step, Situation] | None] = {}
        self._back: dict[Situation, list[Situation]] = {}
        self._alone: dict[Situation, set[Situation]] = {}

    def run(self) -> int:
        """Visit everything; returns the number of situations.

        Raises:
            Wrong: something does not hold; with a shortest way there.
        """
        jobs = [self._number(state) for state in self.submitted.values()]
        first = Situation((*jobs, *[0] * len(self.coming)))
        self._came[first] = None
        level = [first]
        while level:
            level = [after for before in level for after in self._visit(before)]
        self._check_that_all_end()
        self._check_that_operators_settle()
        return len(self._came)

    def way_to(self, situation: Situation) -> list[str]:
        """A shortest history that ends there."""
        way: list[str] = []
        while (last := self._came[situation]) is not None:
            step, situation = last
            way.append(f"{step.actor} {step.job}: {self.described(step.after)}")
        return way[::-1]

    def described(self, situation: Situation) -> str:
        """Phases, places and pods, for people."""
        words = [f"{situation.crashes} crashes"]
        for name, state in self._states_of(situation.jobs).items():
            status = state.status
            nodes = status.get("assignment", {}).get("nodes", [])
            held = status.get("nominated", {}).get("nodes", [])
            words.append(
                f"{name} {status.get('phase')} g{status.get('generation')} on {nodes}"
                f" nominated {held} pods {[pod for pod, _ in state.pods]}"
            )
        return "; ".join(words)

    def some_clusters(self, number: int, *, seed: int) -> list[dict[str, JobState]]:
        """Some of those that were visited, whole."""
        chosen = random.Random(seed).sample(sorted(self._came), number)
        return [self._states_of(situation.jobs) for situation in chosen]

    # --- one situation ------------------------------------------------------------------------

    def _visit(self, before: Situation) -> list[Situation]:
        """Situations that one step leads to and none did before."""
        fresh: list[Situation] = []
        alone: set[Situation] = set()
        self._alone[before] = alone
        try:
            for step in self._steps(before):
                self.steps[step.actor] += 1
                after = step.after
                if after == before:
                    continue
                if after not in self._came:
                    self._came[after] = step, before
                    self._back[after] = []
                    fresh.append(after)
                    self._check(after)
                if step.actor in HELPFUL:
                    self._back.setdefault(after, []).append(before)
                if step.actor in ALONE:
                    alone.add(after)
        except Wrong as error:
            error.add_note("\n".join(self.way_to(fresh[-1] if fresh else before)))
            raise
        return fresh

    def _steps(self, at: Situation) -> Iterator[Step]:
        yield from self._cycles(at)
        for place, (name, number) in enumerate(zip(self.names, at.jobs, strict=True)):
            if not number:
                jobs = with_number(at.jobs, place, self._number(self.coming[name]))
                yield Step(actor="user", job=name, after=at._replace(jobs=jobs))
                continue
            reconciled = self._reconciled(name, number)
            for actor, numbers, more in (
                ("reconciler", reconciled[:1], at),
                ("crash", reconciled[1:], self._crashed(at)),
                ("kubelet", self._changed(helped, number), at),
                ("fault", self._changed(troubled, number), self._faulted(at)),
            ):
                if more is not None:
                    for after in map(self._earlier, numbers) if actor == "crash" else numbers:
                        jobs = with_number(more.jobs, place, after)
                        yield Step(actor=actor, job=name, after=more._replace(jobs=jobs))

    def _cycles(self, at: Situation) -> Iterator[Step]:
        whole, *cut = self._cycled(at.jobs)
        yield Step(actor="scheduler", job="", after=at._replace(jobs=whole))
        ended = self._crashed(at)
        if ended is not None:
            for jobs in cut:
                old = tuple(map(self._earlier, jobs))
                yield Step(actor="crash", job="", after=ended._replace(jobs=old))

    def _crashed(self, at: Situation) -> Situation | None:
        """The same after an operator ended; None: too many did."""
        if at.crashes >= self.bounds.crashes:
            return None
        jobs = tuple(map(self._earlier, at.jobs))
        return at._replace(jobs=jobs, crashes=at.crashes + 1)

    def _faulted(self, at: Situation) -> Situation | None:
        return at._replace(faults=at.faults + 1) if at.faults < self.bounds.faults else None

    # --- computed once ------------------------------------------------------------------------

    def _once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        if key not in self._memory:
            self._memory[key] = compute()
        return self._memory[key]  # pyright: ignore[reportReturnType] - one key, one type

    def _reconciled(self, name: str, number: int) -> Numbers:
        """The state after a reconcile, and those after an end in its middle."""

        def compute() -> Numbers:
            state = self._states[number]
            taken = tiny_operator.reconcile(name, {name: state}, quota=self.bounds.quota)
            self._judge(taken, {name: state})
            return tuple(self._number(each[name]) for each in (taken.after, *taken.cut))

        return self._once(("reconcile", number), compute)

    def _cycled(self, numbers: Numbers) -> tuple[Numbers, ...]:
        """The same of a cycle, which neither reads nor writes children."""
        bare = tuple(self._bare(number) for number in numbers)

        def compute() -> tuple[Numbers, ...]:
            states = self._states_of(bare)
            taken = tiny_operator.cycle(states, quota=self.bounds.quota)
            self._judge(taken, states)
            return tuple(self._numbers_of(each) for each in (taken.after, *taken.cut))

        return tuple(
            tuple(map(self._clothed, after, numbers))
            for after in self._once(("cycle", bare), compute)
        )

    def _changed(self, how: Callable[[JobState], Iterator[JobState]], number: int) -> Numbers:
        return self._once(
            (how.__name__, number),
            lambda: tuple(dict.fromkeys(map(self._number, how(self._states[number])))),
        )

    def _earlier(self, number: int) -> int:
        """The same as the next leader reads it."""
        return number and self._once(
            ("earlier", number), lambda: self._number(self._states[number].of_earlier_leader())
        )

    def _bare(self, number: int) -> int:
        """The same without children."""
        return number and self._once(
            ("bare", number), lambda: self._number(self._states[number]._replace(children=()))
        )

    def _clothed(self, number: int, before: int) -> int:
        """The same with the children that were there."""
        children = self._states[before].children
        return number and self._once(
            ("clothed", number, children),
            lambda: self._number(self._states[number]._replace(children=children)),
        )

    def _judge(self, taken: Taken, before: States) -> None:
        self.computed += 1
        wrong = list(taken.wrong)
        for states in (taken.after, *taken.cut):
            for name, state in states.items():
                wrong += wrong_between(before[name], state)
        if wrong:
            raise Wrong("; ".join(dict.fromkeys(wrong)))

    # --- what holds of all --------------------------------------------------------------------

    def _check(self, situation: Situation) -> None:
        bare = tuple(map(self._bare, situation.jobs))
        states = self._states_of(bare).values()
        wrong = self._once(("check", bare), lambda: wrong_in(states, quota=self.bounds.quota))
        if wrong:
            raise Wrong("; ".join(wrong))

    def _check_that_all_end(self) -> None:
        """I7: from everywhere the operator and kubelets alone lead to the end of all jobs."""
        waiting = [situation for situation in self._came if self._over(situation)]
        reached = set(waiting)
        while waiting:
            for before in self._back.get(waiting.pop(), ()):
                if before not in reached:
                    reached.add(before)
                    waiting.append(before)
        for situation in self._came:
            if situation not in reached:
                error = Wrong(f"a dead end: {self.described(situation)}")
                error.add_note("\n".join(self.way_to(situation)))
                raise error

    def _over(self, situation: Situation) -> bool:
        return all(
            self._states[number].phase in {"Succeeded", "Failed"}
            for number in situation.jobs
            if number
        )

    def _check_that_operators_settle(self) -> None:
        """The operator alone does not go round in circles."""
        waits = {at: len(after) for at, after in self._alone.items()}
        before: dict[Situation, list[Situation]] = {}
        for at, afters in self._alone.items():
            for after in afters:
                before.setdefault(after, []).append(at)
        settled = [at for at, count in waits.items() if not count]
        for at in settled:
            for earlier in before.get(at, ()):
                waits[earlier] -= 1
                if not waits[earlier]:
                    settled.append(earlier)
        for at, count in waits.items():
            if count:
                error = Wrong(f"the operator does not settle: {self.described(at)}")
                error.add_note("\n".join(self.way_to(at)))
                raise error

    # --- numbers ------------------------------------------------------------------------------

    def _number(self, state: JobState) -> int:
        known = self._numbers.setdefault(state, len(self._states))
        if known == len(self._states):
            self._states.append(state)
        return known

    def _states_of(self, numbers: Numbers) -> dict[str, JobState]:
        submitted = zip(self.names, numbers, strict=True)
        return {name: self._states[number] for name, number in submitted if number}

    def _numbers_of(self, states: States) -> Numbers:
        return tuple(self._number(states[name]) if name in states else 0 for name in self.names)


def with_number(numbers: Numbers, place: int, number: int) -> Numbers:
    return (*numbers[:place], number, *numbers[place + 1 :])
