"""What the kill matrix is made of: faults, moments, roles, and the cells where they meet. Pure.

The gang of every cell is the same: two pods with two ranks each. Pod 0 leads, so rank 0 writes the
manifest of a checkpoint, and rank 0 and 1 live beside the store.

`SIGKILL` meets every moment in every role. The other faults meet every moment they can strike at,
in roles that take turns, so that every fault has been in every role as well.

A device fails only where there is one: on the stand-in for NCCL there are more cells
(`every_cell(devices=True)`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle

PODS = 2
RANKS_PER_POD = 2
WORLD_SIZE = PODS * RANKS_PER_POD


class Fault(StrEnum):
    """What goes wrong."""

    SIGKILL = "SIGKILL"
    SIGSEGV = "SIGSEGV"
    SIGABRT = "SIGABRT"
    SIGTERM = "SIGTERM"
    EXCEPTION = "exception"
    OUT_OF_MEMORY = "out of memory"
    EXIT_ZERO = "sys.exit(0)"
    LEAVE_ZERO = "os._exit(0)"
    STOPPED = "SIGSTOP"
    SPINNING = "holds the GIL"
    KERNEL_STUCK = "kernel stuck"
    """A kernel of the rank's device does not end; the process is well."""
    LINK_LOST = "link lost"
    """What a rank's device sends does not arrive, until the gang meets again."""
    AGENT_KILLED = "agent killed"
    NODE_DEAD = "node dead"
    MACHINE_PAUSED = "machine paused"
    OPERATOR_AWAY = "operator away 10 s"
    SNAPSHOT_CORRUPT = "snapshot corrupt"
    CHECKPOINT_CORRUPT = "checkpoint corrupt"
    ACKNOWLEDGED_LOST = "acknowledged checkpoint lost"
    DISK_FULL = "disk full"
    NOT_FINITE = "loss not finite"
    SAME_ERROR = "same error again"


class Moment(StrEnum):
    """When it goes wrong, in the life of the rank that is watched."""

    JOINING = "joining"
    STARTING = "starting"
    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    SNAPSHOT = "snapshot"
    WRITING = "checkpoint write"
    COMMIT = "checkpoint commit"
    RECOVERING = "joining again after another fault"
    RESTORING = "restoring after another fault"
    LAST_STEP = "last step"
    TEARDOWN = "teardown"


class Role(StrEnum):
    """To whom."""

    RANK_0 = "rank 0"
    NEIGHBOUR = "rank beside the leader's"
    REMOTE = "rank of another pod"
    TWO = "two ranks of two pods"
    LEADER = "leader's pod"
    FOLLOWER = "other pod"
    ALL = "both pods"

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that are hit themselves; empty where whole pods are."""
        return _RANKS.get(self, ())

    @property
    def pods(self) -> tuple[int, ...]:
        """The pods that are hit as a whole."""
        return _PODS.get(self, ())


_RANKS = {Role.RANK_0: (0,), Role.NEIGHBOUR: (1,), Role.REMOTE: (3,), Role.TWO: (1, 2)}
_PODS = {Role.LEADER: (0,), Role.FOLLOWER: (1,), Role.ALL: (0, 1)}

BY_SIGNAL = (Fault.SIGKILL, Fault.SIGSEGV, Fault.SIGABRT, Fault.SIGTERM, Fault.STOPPED)
"""A rank that is hit need not help: another process sends the signal."""
OF_DEVICES = (Fault.KERNEL_STUCK, Fault.LINK_LOST)
HANGS = (Fault.STOPPED, Fault.SPINNING, *OF_DEVICES)
SLOW_MOMENTS = (
    Moment.JOINING,
    Moment.STARTING,
    Moment.SNAPSHOT,
    Moment.WRITING,
    Moment.COMMIT,
    Moment.RECOVERING,
    Moment.RESTORING,
)
"""A rank may be silent for half a minute while it builds, reads or writes: hangs are found late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One fault, at one moment, to one role."""

    fault: Fault
    moment: Moment
    role: Role

    @property
    def name(self) -> str:
        """Reads as a sentence and is unique."""
        return f"{self.fault} · {self.moment} · {self.role}"

    @property
    def hits_pods(self) -> bool:
        """Whether agents are lost, so that the operator has to act."""
        return bool(self.role.pods)

    @property
    def must_fail(self) -> bool:
        """Whether going on would be wrong: the job ends with a clear message instead."""
        return self.fault in {Fault.NOT_FINITE, Fault.SAME_ERROR, Fault.ACKNOWLEDGED_LOST}

    @property
    def slow(self) -> bool:
        """Whether it takes half a minute by design."""
        return self.fault in HANGS and self.moment in SLOW_MOMENTS

    @property
    def waits(self) -> bool:
        """Whether it does nothing for most of its time but wait for somebody to be missed."""
        return self.fault in {*HANGS, Fault.NODE_DEAD, Fault.MACHINE_PAUSED, Fault.OPERATOR_AWAY}


def every_cell(*, devices: bool = False) -> tuple[Cell, ...]:
    """All cells, in the order of the report; with `devices` those that need one too."""
    return tuple(dict.fromkeys((*_cells(), *(_of_devices() if devices else ()))))


def shuffled(cells: Sequence[Cell], *, seed: int) -> tuple[Cell, ...]:
    """The same cells, each fault once before any comes twice, then each moment, then the rest."""
    order = list(cells)
    random.Random(seed).shuffle(order)
    chosen: dict[Cell, None] = {}
    for kind in ("fault", "moment"):
        for cell in order:
            if all(getattr(cell, kind) != getattr(other, kind) for other in chosen):
                chosen[cell] = None
    return tuple(chosen | dict.fromkeys(order))


def sample(cells: Sequence[Cell], *, seed: int, count: int) -> tuple[Cell, ...]:
    """`count` of the quick cells, the foremost of `shuffled`."""
    return shuffled([cell for cell in cells if not cell.slow], seed=seed)[:count]


def _cells() -> Iterator[Cell]:
    for moment in Moment:
        for role in _RANKS:
            yield Cell(fault=Fault.SIGKILL, moment=moment, role=role)
    yield from _taking_turns(Fault.SIGSEGV, tuple(_RANKS), start=0)
    yield from _taking_turns(Fault.SIGABRT, tuple(_RANKS), start=1)
    yield from _taking_turns(Fault.SIGTERM, tuple(_RANKS), start=2)
    yield from _taking_turns(Fault.EXCEPTION, tuple(_RANKS), start=3)
    yield from _taking_turns(Fault.OUT_OF_MEMORY, tuple(_RANKS), start=0)
    yield from _taking_turns(Fault.EXIT_ZERO, tuple(_RANKS), start=1)
    yield from _taking_turns(Fault.LEAVE_ZERO, tuple(_RANKS), start=2)
    yield from _taking_turns(Fault.STOPPED, (Role.REMOTE, Role.RANK_0, Role.NEIGHBOUR), start=0)
    yield from _taking_turns(Fault.SPINNING, (Role.REMOTE, Role.RANK_0, Role.NEIGHBOUR), start=1)
    for moment in Moment:
        yield Cell(fault=Fault.AGENT_KILLED, moment=moment, role=Role.LEADER)
        yield Cell(fault=Fault.AGENT_KILLED, moment=moment, role=Role.FOLLOWER)
    yield from _taking_turns(Fault.NODE_DEAD, (Role.FOLLOWER, Role.LEADER, Role.ALL), start=0)
    yield from _taking_turns(Fault.MACHINE_PAUSED, (Role.LEADER, Role.FOLLOWER), start=0)
    yield from _storage()
    yield from _hopeless()
    for role in (Role.RANK_0, Role.REMOTE, Role.LEADER, Role.FOLLOWER):
        for moment in (Moment.FORWARD, Moment.WRITING, Moment.RECOVERING):
            yield Cell(fault=Fault.OPERATOR_AWAY, moment=moment, role=role)


def _of_devices() -> Iterator[Cell]:
    """Where kernels and links are used: a step."""
    roles = cycle((Role.REMOTE, Role.RANK_0, Role.NEIGHBOUR))
    for fault in OF_DEVICES:
        for moment in (Moment.FORWARD, Moment.BACKWARD, Moment.OPTIMIZER, Moment.LAST_STEP):
            yield Cell(fault=fault, moment=moment, role=next(roles))


def _taking_turns(fault: Fault, roles: Sequence[Role], *, start: int) -> Iterator[Cell]:
    turns = cycle(roles)
    for _ in range(start):
        next(turns)
    for moment in Moment:
        role = next(turns)
        by_itself = bool(role.ranks) and fault not in BY_SIGNAL
        if moment is Moment.COMMIT and by_itself:
            role = Role.RANK_0  # nobody else does anything at that moment
        yield Cell(fault=fault, moment=moment, role=role)


def _storage() -> Iterator[Cell]:
    for moment in (Moment.DATA, Moment.BACKWARD, Moment.WRITING, Moment.LAST_STEP):
        for role in (Role.RANK_0, Role.REMOTE):
            yield Cell(fault=Fault.SNAPSHOT_CORRUPT, moment=moment, role=role)
    for moment in (Moment.DATA, Moment.OPTIMIZER, Moment.LAST_STEP):
        yield Cell(fault=Fault.CHECKPOINT_CORRUPT, moment=moment, role=Role.ALL)
    yield Cell(fault=Fault.ACKNOWLEDGED_LOST, moment=Moment.LAST_STEP, role=Role.ALL)
    for role in (Role.RANK_0, Role.NEIGHBOUR, Role.REMOTE):
        yield Cell(fault=Fault.DISK_FULL, moment=Moment.WRITING, role=role)


def _hopeless() -> Iterator[Cell]:
    for role in (Role.RANK_0, Role.NEIGHBOUR, Role.REMOTE):
        yield Cell(fault=Fault.NOT_FINITE, moment=Moment.FORWARD, role=role)
    for moment in (Moment.STARTING, Moment.DATA, Moment.BACKWARD, Moment.OPTIMIZER):
        yield Cell(fault=Fault.SAME_ERROR, moment=moment, role=Role.REMOTE)
