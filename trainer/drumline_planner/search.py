"""Find the best legal layouts of a model on a cluster, exactly: best-first branch and bound.

The space has two levels. An outer choice fixes the degrees of tensor, pipeline, context and expert
parallelism, the micro-batch and recompute. An inner choice fixes the schedule, the stages of a rank
and the kind of data parallelism. An outer choice has a lower bound of its time that no inner one
can beat: the work of the micro-batches spread evenly over the ranks, no bubble, and no message of
data parallelism. Choices are examined in the order of their bounds and computed exactly at their
turn. They are returned when no bound is lower. So the first result is the best, the next is the
second best, and so on. Recompute by blocks and activations on the host are never faster than the
same layout without them. They are choices only if that layout does not fit.

Layouts that `layout_validation` rejects, or that do not fit in memory, are counted with the reason.
Cost grows with the number of choices whose bound is below the result, not with the space.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from drumline_contract.config import ConfigError, DataParallel, Schedule, TrainerConfig
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import violations
from drumline_planner.bounds import OuterBounds, least_state, of_kind
from drumline_planner.memory import (
    Bill,
    HeldActivations,
    held_activations,
    memory_bill,
    moving_bytes,
)
from drumline_planner.setup import TrainingSetup
from drumline_planner.space import (
    Choice,
    Goal,
    Outer,
    Scheduled,
    configured,
    inner_choices,
    outer_choices,
    scheduled_choices,
    sparing,
)
from drumline_planner.step_time import LayersAndHead, PipelineOrder, StepTime, step_time

_MEMORY = "memory:"
"""Prefix of a reason that is about memory."""
_REJECTED = 20
"""Number of rejected choices that are kept with their reason."""
_ROUNDED = 1 - 1e-12
"""A bound is the sum of the same numbers as the time, in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A layout that can be trained, with its bill."""

    choice: Choice
    config: TrainerConfig
    layout: Layout
    setup: TrainingSetup
    time: StepTime
    bill: Bill


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLayout:
    """A choice that cannot be trained, and the reason."""

    choice: Choice
    reason: str
    """Begins with the field at fault, or with memory."""
    bill: Bill | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best layouts, best first."""

    planned: tuple[Planned, ...]
    rejected: tuple[RejectedLayout, ...]
    """The most promising rejected choices, the one with the lowest bound first."""
    refusals: dict[str, int]
    """Number of rejected entries, by the first words of the reason."""
    examined: int
    """Number of choices that were computed. The bounds of all others were too high."""
    space: int
    """Number of outer choices."""


def search(goal: Goal, *, best: int = 5) -> SearchResult:
    """Return the `best` fastest layouts, in order.

    Raises:
        ConfigError: the model has a size that cannot work.
    """
    finder = _Finder.of(goal)
    planned = tuple(planned for planned, _ in zip(finder.run(), range(best), strict=False))
    return SearchResult(
        planned=planned,
        rejected=tuple(finder.rejected),
        refusals=dict(finder.refusals),
        examined=finder.examined,
        space=finder.space,
    )


def pareto(goal: Goal, *, most: int = 12) -> tuple[Planned, ...]:
    """Return layouts of which none is both slower and larger than another, the fastest first.

    Each is the fastest layout that needs at least 3 % less memory than the one before.
    """
    front: list[Planned] = []
    capacity = goal.capacity
    while len(front) < most:
        # Each round allows less memory than the layout before, so the front ends by itself.
        limited = _Finder.of(goal, capacity=capacity)
        planned = next(limited.run(), None)
        if planned is None:
            break
        front.append(planned)
        # 3 % less skips layouts that differ by rounding.
        capacity = int(planned.bill.total * 0.97)
    return tuple(front)


def evaluate(
    goal: Goal, choice: Choice, *, capacity: int | None = None
) -> Planned | RejectedLayout:
    """Compute one choice exactly.

    Args:
        goal: model, batch and GPUs to plan for.
        choice: degrees and settings to try.
        capacity: memory of a GPU in bytes. None: that of the goal.
    """
    return _evaluated(goal, choice, allowed=goal.capacity if capacity is None else capacity)


def _evaluated(
    goal: Goal, choice: Choice, *, allowed: int, held: HeldActivations | None = None
) -> Planned | RejectedLayout:
    # Cheap checks first: configuration, legality, memory, then time.
    try:
        config = configured(goal.config, choice)
    except ConfigError as error:
        return RejectedLayout(choice=choice, reason=str(error))
    world = goal.cluster.gpus
    against = violations(config, world_size=world)
    if against:
        return RejectedLayout(choice=choice, reason=against[0].text)
    layout = Layout.of(config.parallelism, world_size=world)
    setup = TrainingSetup.of(config, layout, software=goal.software)
    bill = goal.correction.of(memory_bill(setup, capacity=allowed, held=held))
    if not bill.fits:
        reason = _too_much(bill.total, allowed)
        return RejectedLayout(choice=choice, reason=reason, bill=bill)
    time = step_time(setup, goal.cluster, constants=goal.constants)
    return Planned(choice=choice, config=config, layout=layout, setup=setup, time=time, bill=bill)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitting:
    """A legal order that fits with the smallest possible state."""

    order: PipelineOrder
    rests: dict[Choice, float]
    """Seconds after the pipeline, by kind of data parallelism."""


_Entry = Outer | Scheduled | _Fitting | Choice


@dataclass(slots=True, kw_only=True)
class _Finder:
    """One run of the search."""

    goal: Goal
    allowed: int
    """Bytes that a layout may use."""
    bounds: OuterBounds
    rejected: list[RejectedLayout] = field(default_factory=list[RejectedLayout])
    refusals: Counter[str] = field(default_factory=Counter[str])
    examined: int = 0
    space: int = 0
    too_large: bool = False
    """True if the last entry was rejected because of its memory."""
    held: dict[Scheduled, HeldActivations] = field(default_factory=dict[Scheduled, HeldActivations])
    """Activations of orders; all kinds of data parallelism hold the same."""
    parts: dict[tuple[Outer, int], LayersAndHead] = field(
        default_factory=dict[tuple[Outer, int], LayersAndHead]
    )
    """Stage parts by stages per rank, which all orders with this number share."""
    rests: dict[tuple[Outer, int, bool, DataParallel, int, bool], float] = field(
        default_factory=dict[tuple[Outer, int, bool, DataParallel, int, bool], float]
    )

    @classmethod
    def of(cls, goal: Goal, *, capacity: int | None = None) -> _Finder:
        """Return a search for layouts that fit in `capacity` bytes; None: the goal's capacity."""
        allowed = goal.capacity if capacity is None else capacity
        return cls(goal=goal, allowed=allowed, bounds=OuterBounds(goal=goal, allowed=allowed))

    def run(self) -> Iterator[Planned]:
        """Yield layouts, the fastest first."""
        # The counter breaks ties in the heap, because entries cannot be compared.
        number = count()
        # Phase 1: all outer choices with their bounds.
        heap: list[tuple[float, int, _Entry | Planned]] = []
        given: set[tuple[Outer, Schedule, int, float, float]] = set()
        shapes = deque(outer_choices(self.goal))
        while shapes:
            outer = shapes.popleft()
            self.space += 1
            bound = self._bound(outer)
            if bound is None:
                # An outer choice that cannot fit is replaced by its memory-saving variants.
                shapes.extend(sparing(self.goal, outer))
            else:
                heapq.heappush(heap, (bound, next(number), outer))
        # Phase 2: best first. A layout at the top of the heap beats every bound below it.
        while heap:
            bound, _, entry = heapq.heappop(heap)
            if isinstance(entry, Planned):
                # another kind of data parallelism that takes as long and as much says nothing new
                choice = entry.choice
                same = (choice.outer, choice.schedule, choice.stages_per_rank)
                key = (*same, entry.time.seconds, entry.bill.total)
                if key not in given:
                    given.add(key)
                    yield entry
                continue
            for least, finer in self._finer(entry):
                # A child's bound is at least its parent's, which keeps the order admissible.
                heapq.heappush(heap, (max(least, bound), next(number), finer))

    def _finer(self, entry: _Entry) -> Iterator[tuple[float, _Entry | Planned]]:
        """Return the children of an entry with bounds.

        If it is too large, return cheaper entries.
        """
        # The flag belongs to this entry. `_refuse` sets it.
        self.too_large = False
        match entry:
            case Outer():
                for scheduled in scheduled_choices(self.goal, entry):
                    yield self.bounds.ramp(scheduled), scheduled
            case Scheduled():
                yield from self._fitting(entry)
            case _Fitting():
                pipeline = entry.order.seconds()
                for choice, rest in entry.rests.items():
                    yield _ROUNDED * (pipeline + rest), choice
            case Choice():
                planned = self._worked_out(entry)
                if planned is not None:
                    yield planned.time.seconds, planned
        # Variants enter the heap only after the plain layout failed in memory.
        if self.too_large and isinstance(entry, Scheduled | Choice):
            yield from self._sparing(entry)

    def _sparing(self, entry: Scheduled | Choice) -> Iterator[tuple[float, Scheduled | Choice]]:
        """Return the alternatives to an entry that needs too much memory."""
        for outer in sparing(self.goal, entry.outer):
            less = replace(entry, outer=outer)
            bound = self._bound(outer)
            if bound is None:
                yield from self._sparing(less)
            else:
                yield max(bound, self.bounds.ramp(_order_of(less))), less

    def _bound(self, outer: Outer) -> float | None:
        # The bound is cached, so the refusal is counted once.
        known = outer in self.bounds.seconds
        bound = self.bounds.of(outer)
        if bound is None and not known:
            self.refusals["memory"] += 1
        return bound

    def _fitting(self, scheduled: Scheduled) -> Iterator[tuple[float, _Fitting | Choice]]:
        """Return the order with its bounds, or None if every kind is rejected."""
        goal, cluster = self.goal, self.goal.cluster
        # Phase 1: legality is the same for all kinds of data parallelism.
        choices = list(inner_choices(goal, scheduled))
        if not choices:  # what is kept as it is written leaves none
            return
        try:
            config = configured(goal.config, choices[0])
        except ConfigError:  # working them out says it
            yield from ((0.0, choice) for choice in choices)
            return
        against = violations(config, world_size=cluster.gpus)
        if against:
            self._refuse(RejectedLayout(choice=choices[0], reason=against[0].text))
            return
        # Phase 2: memory with the smallest possible state.
        layout = Layout.of(config.parallelism, world_size=cluster.gpus)
        setup = TrainingSetup.of(config, layout, software=goal.software)
        held = self.held[scheduled] = held_activations(setup)
        least = moving_bytes(held) + least_state(setup, ranks=cluster.gpus)
        least *= goal.correction.least
        if least > self.allowed:
            reason = _too_much(least, self.allowed)
            self._refuse(RejectedLayout(choice=choices[0], reason=reason))
            return
        # Phase 3: the time of the order, and of each kind after it.
        key = (scheduled.outer, scheduled.stages_per_rank)
        parts = self.parts.get(key)
        order = PipelineOrder.of(setup, cluster, constants=goal.constants, parts=parts)
        self.parts[key] = order.parts
        rests = {choice: self._rest(order, choice) for choice in choices}
        fitting = _Fitting(order=order, rests=rests)
        # The factor below 1 absorbs the order of the additions.
        yield _ROUNDED * (order.least_seconds() + min(rests.values())), fitting

    def _rest(self, order: PipelineOrder, choice: Choice) -> float:
        """Return the seconds after the pipeline, cached for orders with equal stages."""
        schedule, fsdp = choice.schedule, choice.kind is DataParallel.FSDP
        kind = (choice.kind, choice.replicate, fsdp and schedule.splits_backward)
        key = (choice.outer, choice.stages_per_rank, schedule.is_v_shaped, *kind)
        if key not in self.rests:
            self.rests[key] = order.seconds_after(of_kind(order.setup, choice))
        return self.rests[key]

    def _refuse(self, rejected: RejectedLayout) -> None:
        self.too_large = rejected.reason.startswith(_MEMORY)
        self.refusals[rejected.reason.partition(":")[0]] += 1
        # One rejected choice for each outer choice, so that the list shows different ideas.
        known = any(rejected.choice.outer == each.choice.outer for each in self.rejected)
        if len(self.rejected) < _REJECTED and not known:
            self.rejected.append(rejected)

    def _worked_out(self, choice: Choice) -> Planned | None:
        self.examined += 1
        held = self.held.get(_order_of(choice))
        result = _evaluated(self.goal, choice, allowed=self.allowed, held=held)
        if isinstance(result, Planned):
            return result
        self._refuse(result)
        return None


def _order_of(entry: Scheduled | Choice) -> Scheduled:
    return Scheduled(
        outer=entry.outer, schedule=entry.schedule, stages_per_rank=entry.stages_per_rank
    )


def _too_much(needed: float, allowed: float) -> str:
    return f"{_MEMORY} {needed / 2**30:.1f} GiB of {allowed / 2**30:.1f}"
