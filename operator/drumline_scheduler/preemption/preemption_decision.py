"""Build `Preemption` decisions, with their messages, from chosen victims or moves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drumline_scheduler.decisions import Preemption, Victim, VictimReason
from drumline_scheduler.model import Gang, Reclaim
from drumline_scheduler.preemption.consolidation import Consolidation
from drumline_scheduler.preemption.eviction_simulation import EvictionUnit
from drumline_scheduler.preemption.requests import VictimChoice
from drumline_scheduler.rejections import bounded, counted, named


def last_units(units: Iterable[EvictionUnit]) -> list[EvictionUnit]:
    """Return the last evicted unit of each gang, sorted by key. It has what the gang keeps."""
    last: dict[str, EvictionUnit] = {}
    for unit in units:
        if unit.uid not in last or last[unit.uid].step < unit.step:
            last[unit.uid] = unit
    return sorted(last.values(), key=lambda unit: (unit.held.gang.key, unit.uid))


def preemption_of(
    choice: VictimChoice, *, assignment: tuple[str, ...], replaced: tuple[int, ...] = ()
) -> Preemption:
    """Return the decision to evict the victims of a choice.

    Args:
        choice: the victims and the request.
        assignment: the preemptor's nodes by position.
        replaced: the new positions, if a running gang is repaired.
    """
    gang, view = choice.request.gang, choice.search.view
    ordinals = [view.ordinal_of[name] for name in assignment if name in view.ordinal_of]
    depth, domain = view.tree.common(ordinals)
    victims = _victims(choice.units)
    overrides = choice.request.rule.reclaim is Reclaim.OVERRIDE
    return Preemption(
        key=gang.key,
        uid=gang.uid,
        pool=choice.request.pool,
        assignment=assignment,
        victims=victims,
        level=view.tree.level_name(depth),
        domain=domain.path,
        message=_message(choice=choice, victims=victims, nodes=assignment),
        replaced=replaced,
        override=str(gang.override) if overrides and gang.override else "",
    )


def consolidation_of(moves: Consolidation, *, gang: Gang) -> Preemption:
    """Return the decision to move gangs so that a waiting gang can start."""
    view, nodes = moves.search.view, moves.plan.nodes
    depth, domain = view.tree.common([view.ordinal_of[name] for name in nodes])
    keys = named(sorted(unit.held.gang.key for unit in moves.movers))
    return Preemption(
        key=gang.key,
        uid=gang.uid,
        pool=moves.pool,
        assignment=nodes,
        victims=_movers(moves),
        level=view.tree.level_name(depth),
        domain=domain.path,
        message=bounded(
            f"{keys} to move within pool {moves.pool}, so that {gang.key} has"
            f" {counted(len(set(nodes)), 'node')}"
        ),
    )


def _victims(units: Iterable[EvictionUnit]) -> tuple[Victim, ...]:
    return tuple(
        Victim(
            key=unit.held.gang.key,
            uid=unit.uid,
            gpus=unit.before + unit.gpus,
            gpu_seconds_lost=0.0 if unit.kept else unit.held.gpu_seconds_at_risk,
            why=unit.why,
            kept=unit.kept,
        )
        for unit in last_units(units)
    )


def _movers(moves: Consolidation) -> tuple[Victim, ...]:
    victims = (
        Victim(
            key=move.held.gang.key,
            uid=move.held.gang.uid,
            gpus=move.held.gpus,
            gpu_seconds_lost=move.held.gpu_seconds_at_risk,
            why=VictimReason.MOVED,
            moves_to=move.nodes,
            moves_to_pool=moves.pool,
        )
        for move in moves.plan.relocations
    )
    return tuple(sorted(victims, key=lambda victim: (victim.key, victim.uid)))


def _message(*, choice: VictimChoice, victims: Iterable[Victim], nodes: Sequence[str]) -> str:
    gang = choice.request.gang
    where = f"{counted(len(set(nodes)), 'node')} of pool {choice.request.pool}"
    texts = [_victim_text(victim) for victim in victims]
    return bounded(f"{named(texts)} to leave {where} for {gang.key} (priority {gang.priority})")


def _victim_text(victim: Victim) -> str:
    gpus = counted(victim.gpus, "GPU")
    if victim.kept:
        return (
            f"{victim.key} ({victim.why}, {gpus}, continues with"
            f" {counted(len(victim.kept), 'pod')})"
        )
    return (
        f"{victim.key} ({victim.why}, {gpus},"
        f" {victim.gpu_seconds_lost:.0f} GPU-seconds since its checkpoint)"
    )
