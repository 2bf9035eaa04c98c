"""The best legal layouts of a model on a cluster, exactly: best-first branch and bound.

The space: degrees of tensor, pipeline, context and expert parallelism, micro-batch, recompute (the
outer choice), then schedule, stages a rank, and the kind of data parallelism (the inner one). An
outer choice has a lower bound of its time that no inner one can beat: the work of the micro-batches
spread over the ranks as evenly as can be, no bubble, no message of data parallelism. Choices are
taken up in the order of their bounds, worked out exactly when their turn comes, and given out when
no bound is lower: what comes out first is the best, then the second best, and so on. Recompute by
blocks and activations on the host are never faster than the same layout without: they are choices
only where that does not fit.

What `layout_validation` refuses, and what does not fit in memory, is counted with its reason. Cost
grows with the choices whose bound is below the result, not with the space.
"""

from __future__ import annotations

import functools
import heapq
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from drumline_trainer.config import (
    ConfigError,
    DataParallel,
    ModelConfig,
    Offload,
    Recompute,
    Schedule,
    TrainerConfig,
)
from drumline_trainer.layout import Layout
from drumline_trainer.layout_validation import violations
from drumline_trainer.planner import activations
from drumline_trainer.planner.memory import CONTEXT_BYTES, Bill, memory_bill, moving_bytes
from drumline_trainer.planner.setup import TrainingSetup, stage_layers
from drumline_trainer.planner.space import (
    Choice,
    Goal,
    Outer,
    Scheduled,
    chosen_memory,
    configured,
    inner_choices,
    outer_choices,
    scheduled_choices,
    sparing,
)
from drumline_trainer.planner.step_time import StepTime, fabric, pipeline_bound, step_time
from drumline_trainer.planner.work import Speeds, head_passes, layer_passes, with_host_copies
from drumline_trainer.shapes.flops import weights

_Entry = Outer | Scheduled | Choice

_MEMORY = "memory:"
"""How the reason begins where memory is at fault."""


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
    """A choice that cannot, and why."""

    choice: Choice
    reason: str
    """Begins with the field at fault, or with memory."""
    bill: Bill | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The best layouts, best first."""

    planned: tuple[Planned, ...]
    rejected: tuple[RejectedLayout, ...]
    """The most promising of those that were refused, the one with the lowest bound first."""
    refusals: dict[str, int]
    """How many were refused, by the first words of the reason."""
    examined: int
    """Choices that were worked out; the others' bounds were too high."""
    space: int
    """Outer choices."""


def search(goal: Goal, *, best: int = 5) -> SearchResult:
    """The `best` fastest layouts, in order.

    Raises:
        ConfigError: the model has a size that cannot work.
    """
    finder = _Finder(goal)
    planned = tuple(planned for planned, _ in zip(finder.run(), range(best), strict=False))
    return SearchResult(
        planned=planned,
        rejected=tuple(finder.rejected),
        refusals=dict(finder.refusals),
        examined=finder.examined,
        space=finder.space,
    )


def pareto(goal: Goal, *, most: int = 12) -> tuple[Planned, ...]:
    """Layouts of which none is both slower and larger than another, the fastest first.

    Each is the fastest of those that need less memory than the one before.
    """
    front: list[Planned] = []
    capacity = goal.capacity
    while len(front) < most:
        limited = _Finder(goal, capacity=capacity)
        planned = next(limited.run(), None)
        if planned is None:
            break
        front.append(planned)
        capacity = int(planned.bill.total * 0.97)
    return tuple(front)


def evaluate(
    goal: Goal, choice: Choice, *, capacity: int | None = None
) -> Planned | RejectedLayout:
    """Work one choice out."""
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
    allowed = goal.capacity if capacity is None else capacity
    bill = goal.correction.of(memory_bill(setup, capacity=allowed))
    if not bill.fits:
        return RejectedLayout(
            choice=choice,
            reason=_too_much(bill.total, allowed),
            bill=bill,
        )
    time = step_time(setup, goal.cluster, constants=goal.constants)
    return Planned(choice=choice, config=config, layout=layout, setup=setup, time=time, bill=bill)


@dataclass(slots=True)
class _Finder:
    """One run of the search."""

    goal: Goal
    capacity: int | None = None
    rejected: list[RejectedLayout] = field(default_factory=list[RejectedLayout])
    refusals: Counter[str] = field(default_factory=Counter[str])
    examined: int = 0
    space: int = 0
    too_large: bool = False
    """Whether what was refused last was refused for its memory."""
    layers: dict[Outer, tuple[float, float, float]] = field(
        default_factory=dict[Outer, tuple[float, float, float]]
    )
    """Seconds of the three passes of a layer."""

    def run(self) -> Iterator[Planned]:
        """Layouts, the fastest first."""
        number = count()
        heap: list[tuple[float, int, _Entry | Planned]] = []
        shapes = deque(outer_choices(self.goal))
        while shapes:
            outer = shapes.popleft()
            self.space += 1
            bound = self._bound(outer)
            if bound is None:
                shapes.extend(sparing(self.goal, outer))
            else:
                heapq.heappush(heap, (bound, next(number), outer))
        while heap:
            bound, _, entry = heapq.heappop(heap)
            if isinstance(entry, Planned):
                yield entry
                continue
            for least, finer in self._finer(entry, bound):
                heapq.heappush(heap, (least, next(number), finer))

    def _finer(self, entry: _Entry, bound: float) -> Iterator[tuple[float, _Entry | Planned]]:
        """What comes of an entry, with bounds; where it is too large, what needs less memory."""
        match entry:
            case Outer():
                for scheduled in scheduled_choices(self.goal, entry):
                    yield max(bound, self._ramp(scheduled)), scheduled
            case Scheduled():
                least = self._scheduled_bound(entry)
                if least is None:
                    for outer in self._sparing(entry.outer):
                        yield bound, replace(entry, outer=outer)
                    return
                for choice in inner_choices(self.goal, entry):
                    yield least, choice
            case Choice():
                planned = self._worked_out(entry)
                if planned is not None:
                    yield planned.time.seconds, planned
                    return
                for outer in self._sparing(entry.outer):
                    yield bound, replace(entry, outer=outer)

    def _sparing(self, outer: Outer) -> Iterator[Outer]:
        """What to try in place of an entry that was just refused for its memory."""
        if self.too_large:
            yield from sparing(self.goal, outer)

    def _ramp(self, scheduled: Scheduled) -> float:
        """Seconds until the last rank has something to do, its work, and until the first is done.

        Of every rank. Where backward passes are split, weights' gradients fill the end.
        """
        goal, outer, schedule = self.goal, scheduled.outer, scheduled.schedule
        if outer.pipeline == 1:
            return 0.0
        forward, back, weight = self.layers[outer]
        whole = forward + back + weight
        ramp = forward if schedule.splits_backward else whole
        stages = outer.pipeline * scheduled.stages_per_rank
        if stages > goal.config.model.layers:
            return 0.0
        data = goal.cluster.gpus // (outer.tensor * outer.context * outer.pipeline)
        micro_batches = goal.config.global_batch_size // data // outer.micro_batch
        shares = _shares(
            goal.config.model,
            Layout(
                pipeline=outer.pipeline,
                schedule=Schedule.ZBV if schedule.is_v_shaped else Schedule.INTERLEAVED,
                stages_per_rank=scheduled.stages_per_rank,
            ),
            goal.config.tokens_per_sample,
        )
        most = max(before * ramp + micro_batches * own * whole for own, before in shares)
        return most + goal.constants.step

    def _scheduled_bound(self, scheduled: Scheduled) -> float | None:
        """The same for an order; None where it is refused whatever the inner choice."""
        goal = self.goal
        self.too_large = False
        choice = next(inner_choices(goal, scheduled), None)
        if choice is None:  # what is kept as it is written leaves none
            return None
        try:
            config = configured(goal.config, choice)
        except ConfigError:
            return 0.0  # the inner choice says it
        against = violations(config, world_size=goal.cluster.gpus)
        if against:
            self._refuse(RejectedLayout(choice=choice, reason=against[0].text))
            return None
        layout = Layout.of(config.parallelism, world_size=goal.cluster.gpus)
        setup = TrainingSetup.of(config, layout, software=goal.software)
        least = moving_bytes(setup) + _least_state(setup, ranks=goal.cluster.gpus)
        least *= goal.correction.least
        allowed = self.allowed
        if least > allowed:
            self._refuse(RejectedLayout(choice=choice, reason=_too_much(least, allowed)))
            return None
        return pipeline_bound(setup, goal.cluster, constants=goal.constants)

    @property
    def allowed(self) -> int:
        """Bytes that a layout may use."""
        return self.goal.capacity if self.capacity is None else self.capacity

    def _refuse(self, rejected: RejectedLayout) -> None:
        self.too_large = rejected.reason.startswith(_MEMORY)
        self.refusals[rejected.reason.partition(":")[0]] += 1
        seen = {each.choice.outer for each in self.rejected}
        if len(seen) < 20 and rejected.choice.outer not in seen:
            self.rejected.append(rejected)

    def _worked_out(self, choice: Choice) -> Planned | None:
        self.examined += 1
        result = evaluate(self.goal, choice, capacity=self.capacity)
        if isinstance(result, Planned):
            return result
        self._refuse(result)
        return None

    def _bound(self, outer: Outer) -> float | None:
        """Seconds that no inner choice is below; None where none can fit in memory."""
        goal, cluster = self.goal, self.goal.cluster
        data = cluster.gpus // (outer.tensor * outer.context * outer.pipeline)
        setup = self._outline(outer, data)
        layers, pipeline = goal.config.model.layers, outer.pipeline
        least = goal.correction.least * _least_memory(setup, outer, ranks=cluster.gpus)
        if least > self.allowed:
            self.refusals["memory"] += 1
            return None
        speeds = Speeds.of(cluster.gpu, goal.constants, setup)
        axes = fabric(setup, cluster, goal.constants)
        layer = with_host_copies(setup, layer_passes(setup, speeds, axes.inner))
        head = head_passes(setup, speeds, axes.inner)
        self.layers[outer] = (layer.forward.total, layer.input.total, layer.weight.total)
        work = layers * sum(self.layers[outer])
        work += head.forward.total + head.input.total + head.weight.total
        return setup.micro_batches * work / pipeline + goal.constants.step

    def _outline(self, outer: Outer, data: int) -> TrainingSetup:
        config = self.goal.config
        memory = chosen_memory(config.memory, outer)
        if outer.recompute is Recompute.BLOCKS:  # never less than full, without copies
            full, nowhere = Recompute.FULL, Offload.NONE
            memory = replace(memory, recompute=full, offload_activations=nowhere)
        return TrainingSetup(
            model=config.model,
            layout=Layout(
                data_parallel=DataParallel.DDP,
                replicate=data,
                tensor=outer.tensor,
                context=outer.context,
                expert=outer.expert,
                pipeline=outer.pipeline,
                sequence_parallel=config.parallelism.sequence_parallel,
            ),
            sequence_length=config.tokens_per_sample,
            micro_batch=outer.micro_batch,
            micro_batches=config.global_batch_size // data // outer.micro_batch,
            recompute=memory.recompute,
            memory=memory,
            precision=config.precision,
            fp8=config.fp8,
            optimizer=config.optimizer.kind,
            lora=config.lora,
            software=self.goal.software,
        )


@functools.lru_cache(maxsize=1024)
def _shares(
    model: ModelConfig, layout: Layout, sequence_length: int
) -> tuple[tuple[int, int], ...]:
    """Numbers of layers that a rank may have, and of each the most that lie before its first."""
    sizes = list(map(len, stage_layers(model, layout.stages, sequence_length)))
    before, most = 0, dict[int, int]()
    for place in range(layout.pipeline):
        most[sum(sizes[stage] for stage in layout.stages_of(place))] = before
        before += sizes[place]
    return tuple(most.items())


def _too_much(needed: float, allowed: float) -> str:
    return f"{_MEMORY} {needed / 2**30:.1f} GiB of {allowed / 2**30:.1f}"


def _least_memory(setup: TrainingSetup, outer: Outer, *, ranks: int) -> float:
    """Bytes that the fullest rank has at least, whatever the inner choice."""
    layers, pipeline = setup.model.layers, setup.layout.pipeline
    kept = 0.0
    on_device = setup.memory.offload_activations is Offload.NONE
    if outer.recompute is not Recompute.BLOCKS and on_device:
        alive = min(setup.micro_batches, pipeline)
        kept = alive * activations.layers_kept(setup, max(1, layers // pipeline - 1))
    return kept + _least_state(setup, ranks=ranks) + CONTEXT_BYTES


def _least_state(setup: TrainingSetup, *, ranks: int) -> float:
    """Of weights and moments, shared out over all ranks."""
    host = setup.memory
    on_device = host.offload_parameters == "none" and host.offload_optimizer == "none"
    return 8.0 * weights(setup.model) / ranks if on_device and setup.lora is None else 0.0
