"""A cell as orders to its ranks: who watches for which moment, and what they do to whom. Pure.

Standard library only, like everything a rank process imports before it trains.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum

from tests.matrix.cells import BY_SIGNAL, RANKS_PER_POD, Cell, Fault, Moment, Role, every_cell

FOLDER = "MATRIX_FOLDER"
"""Variable: where the processes of a cell leave their traces."""
STRIKES = "MATRIX_STRIKES"
MUTANT = "MATRIX_MUTANT"
BACKEND = "MATRIX_BACKEND"

STEPS = 12
CHECKPOINT_EVERY = 5
NEWEST_CHECKPOINT = STEPS - STEPS % CHECKPOINT_EVERY
"""Before the last step's."""
ACKNOWLEDGED = "acknowledged"
"""File of the cell's folder: the newest step that the operator knows of."""
MAIN = "main"
OPENING = "opening"
"""The fault before the fault, where the moment is a recovery."""
STRUCK_STEP = 7
"""Finished steps when a fault strikes that is bound to no particular one."""


class Backend(StrEnum):
    """What the ranks of a cell talk over."""

    GLOO = "gloo"
    NCCL = "nccl"
    """The stand-in (`tests.gloo.nccl`)."""


def cells_on(backend: Backend) -> tuple[Cell, ...]:
    """Only the stand-in for NCCL has devices that fail."""
    return every_cell(devices=backend is Backend.NCCL)


class Deed(StrEnum):
    """What is done at the moment."""

    SIGNAL = "signal"
    """Send `number` to the ranks."""
    RAISE = "raise"
    ALLOCATE = "allocate"
    EXIT = "exit"
    LEAVE = "leave"
    SPIN = "spin"
    HANG_DEVICE = "hang device"
    LOSE_LINKS = "lose links"
    POISON = "poison"
    """Make this rank's loss not a number."""
    KILL_AGENTS = "kill agents"
    KILL_PODS = "kill pods"
    PAUSE_PODS = "pause pods"
    SPOIL_SNAPSHOT = "spoil snapshot"
    """Flip a byte of the newest snapshot of this rank, then die."""
    SPOIL_CHECKPOINT = "spoil checkpoint"
    """Flip a byte of the newest checkpoint, then kill the pods."""
    FILL_DISK = "fill disk"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """One order to a rank."""

    name: str
    watcher: int
    """The rank that waits for the moment, and acts."""
    at: str
    """Name of the point in the rank's life: a phase, or a hook of `striking`."""
    step: int | None = None
    """At least so many steps are finished at that point; None: any number."""
    after: str = ""
    """The strike that must have happened, in an earlier membership than this one's."""
    deed: Deed
    number: int = 0
    ranks: tuple[int, ...] = ()
    pods: tuple[int, ...] = ()
    acknowledged: int | None = None
    """The operator has to know of the checkpoint of this step, or a newer one, by then."""
    always: bool = False
    """Each time the moment comes, not only the first."""


def encode(strikes: tuple[Strike, ...]) -> str:
    """For an environment variable."""
    return json.dumps([asdict(strike) for strike in strikes])


def decode(text: str) -> tuple[Strike, ...]:
    """Read `encode`'s text."""
    return tuple(
        Strike(
            **{
                **raw,
                "deed": Deed(raw["deed"]),
                "ranks": tuple(raw["ranks"]),
                "pods": tuple(raw["pods"]),
            }
        )
        for raw in json.loads(text or "[]")
    )


_SIGNALS = {
    Fault.SIGKILL: 9,
    Fault.SIGSEGV: 11,
    Fault.SIGABRT: 6,
    Fault.SIGTERM: 15,
    Fault.STOPPED: 19,
    Fault.OPERATOR_AWAY: 9,
}
_DEEDS = {
    Fault.EXCEPTION: Deed.RAISE,
    Fault.SAME_ERROR: Deed.RAISE,
    Fault.OUT_OF_MEMORY: Deed.ALLOCATE,
    Fault.EXIT_ZERO: Deed.EXIT,
    Fault.LEAVE_ZERO: Deed.LEAVE,
    Fault.SPINNING: Deed.SPIN,
    Fault.KERNEL_STUCK: Deed.HANG_DEVICE,
    Fault.LINK_LOST: Deed.LOSE_LINKS,
    Fault.NOT_FINITE: Deed.POISON,
    Fault.AGENT_KILLED: Deed.KILL_AGENTS,
    Fault.NODE_DEAD: Deed.KILL_PODS,
    Fault.MACHINE_PAUSED: Deed.PAUSE_PODS,
    Fault.SNAPSHOT_CORRUPT: Deed.SPOIL_SNAPSHOT,
    Fault.CHECKPOINT_CORRUPT: Deed.SPOIL_CHECKPOINT,
    Fault.ACKNOWLEDGED_LOST: Deed.SPOIL_CHECKPOINT,
    Fault.DISK_FULL: Deed.FILL_DISK,
}
_POINTS: dict[Moment, tuple[str, int | None]] = {
    Moment.JOINING: ("joining", None),
    Moment.STARTING: ("starting", None),
    Moment.DATA: ("data", STRUCK_STEP),
    Moment.FORWARD: ("forward", STRUCK_STEP),
    Moment.BACKWARD: ("backward", STRUCK_STEP),
    Moment.OPTIMIZER: ("optimizer", STRUCK_STEP),
    Moment.SNAPSHOT: ("snapshot", STRUCK_STEP - 1),
    Moment.WRITING: ("writing", 2 * CHECKPOINT_EVERY),
    Moment.COMMIT: ("commit", 2 * CHECKPOINT_EVERY),
    Moment.RECOVERING: ("joining", None),
    Moment.RESTORING: ("restoring", None),
    Moment.LAST_STEP: ("optimizer", STEPS - 1),
    Moment.TEARDOWN: ("done", None),
}
_AGAIN = (Moment.RECOVERING, Moment.RESTORING)
_AFTER_A_CHECKPOINT = (Fault.CHECKPOINT_CORRUPT, Fault.ACKNOWLEDGED_LOST)


def strikes_of(cell: Cell) -> tuple[Strike, ...]:
    """The orders that make the cell's fault happen at its moment."""
    again = cell.moment in _AGAIN
    main = _main(cell, after=OPENING if again else "")
    return (*_opening(main), *main) if again else main


def _main(cell: Cell, *, after: str) -> tuple[Strike, ...]:
    at, step = _POINTS[cell.moment]
    if cell.fault in _AFTER_A_CHECKPOINT:
        step = STEPS - 1
    if cell.hits_pods:
        deed = _DEEDS.get(cell.fault, Deed.KILL_AGENTS)
        watcher = _watcher_in(cell)
        return (
            Strike(
                name=MAIN,
                watcher=watcher,
                at=at,
                step=step,
                after=after,
                deed=deed,
                pods=cell.role.pods,
                acknowledged=(NEWEST_CHECKPOINT if cell.fault is Fault.ACKNOWLEDGED_LOST else None),
            ),
        )
    if cell.fault in BY_SIGNAL or cell.fault is Fault.OPERATOR_AWAY:
        watcher = 0 if cell.moment is Moment.COMMIT else cell.role.ranks[0]
        number = _SIGNALS[cell.fault]
        return (
            Strike(
                name=MAIN,
                watcher=watcher,
                at=at,
                step=step,
                after=after,
                deed=Deed.SIGNAL,
                number=number,
                ranks=cell.role.ranks,
            ),
        )
    return tuple(
        Strike(
            name=MAIN if rank == cell.role.ranks[0] else f"{MAIN}-{rank}",
            watcher=rank,
            at=at,
            step=step,
            after=after,
            deed=_DEEDS[cell.fault],
            ranks=(rank,),
            always=cell.fault in {Fault.NOT_FINITE, Fault.SAME_ERROR},
        )
        for rank in cell.role.ranks
    )


def _watcher_in(cell: Cell) -> int:
    """A rank of the pod that is hit; only rank 0 is about when a checkpoint is committed."""
    if cell.moment is Moment.COMMIT or cell.role is Role.ALL:
        return 0
    return cell.role.pods[0] * RANKS_PER_POD + 1


def _opening(main: tuple[Strike, ...]) -> tuple[Strike, ...]:
    """A rank that the main fault spares dies first."""
    spared = next(
        rank
        for rank in (3, 1, 2, 0)
        if rank not in {order.watcher for order in main} | set(main[0].ranks)
    )
    return (
        Strike(
            name=OPENING,
            watcher=spared,
            at="forward",
            step=STRUCK_STEP,
            deed=Deed.SIGNAL,
            number=_SIGNALS[Fault.SIGKILL],
            ranks=(spared,),
        ),
    )
