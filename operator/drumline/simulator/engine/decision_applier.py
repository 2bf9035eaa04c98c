"""Carrying out what a cycle decided, as the operator does: in words of the simulated world.

A preempted job gets its notice at once and is gone `save_seconds` later; until then it holds its
places and does nothing but save. Whoever it leaves for has the promised places `nominated`. A job
that moves is a preempted one whose new places are kept for it; one that shrinks goes on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drumline.scheduling import Decisions, Move, Placed, Preemption, Resized, Victim
from drumline.simulator.arrivals import Execution
from drumline.simulator.engine.simulated_cluster import World
from drumline.simulator.engine.simulated_job import Life
from drumline.simulator.results.outcome import Eviction


class Carrier:
    """Puts decisions into effect."""

    def __init__(
        self,
        *,
        world: World,
        execution: Execution,
        ends: Callable[[Life], None],
        gone: Callable[[Life, float], None],
    ) -> None:
        """Tell it what to call.

        Args:
            world: what changes.
            execution: how long saving takes.
            ends: a job has places and will end at `Life.ends_at`.
            gone: a job was told to go and will be gone at that time.
        """
        self._world = world
        self._execution = execution
        self._ends = ends
        self._gone = gone
        self.evictions: list[Eviction] = []
        self.moved = 0
        self.resized = 0

    def carry_out(self, decisions: Decisions, now: float) -> None:
        """Everything one cycle decided."""
        for placed in decisions.placed:
            self._place(placed, now)
        for resized in decisions.resized:
            self._resize(resized, now)
        for preemption in decisions.preemptions:
            self._preempt(preemption, now)
        for move in decisions.moves:
            self._move(move, now)
        for uid in decisions.stay:
            self._world.let_stay(self._world.running[uid])
            self._ends(self._world.running[uid])

    def _place(self, placed: Placed, now: float) -> None:
        world = self._world
        life = world.waiting.get(placed.uid)
        if life is not None:
            world.start(life, pool=placed.pool, nodes=placed.assignment, now=now)
        else:
            life = world.running[placed.uid]
            world.reseat(life, nodes=placed.assignment, now=now)
        self._ends(life)

    def _resize(self, resized: Resized, now: float) -> None:
        life = self._world.running[resized.uid]
        held = life.admitted.assignment if life.admitted else ()
        nodes = (*(held[position] for position in resized.kept), *resized.added)
        life.save(now)
        self._world.reseat(life, nodes=nodes, now=now)
        self.resized += 1
        self._ends(life)

    def _preempt(self, preemption: Preemption, now: float) -> None:
        life = self._world.waiting.get(preemption.uid)
        if life is not None:
            life.gang = replace(
                life.gang, nominated=preemption.assignment, nominated_pool=preemption.pool
            )
        else:
            self._world.keep(
                self._world.running[preemption.uid],
                nominated={i: preemption.assignment[i] for i in preemption.replaced},
                pool=preemption.pool,
            )
        for victim in preemption.victims:
            self._send_away(victim, now)
        self.evictions.append(
            Eviction(
                at=now,
                key=preemption.key,
                victims=tuple(victim.key for victim in preemption.victims),
                gpus=sum(victim.gpus for victim in preemption.victims),
            )
        )

    def _send_away(self, victim: Victim, now: float) -> None:
        life = self._world.running[victim.uid]
        if victim.kept:
            life.save(now)
            self._world.tell_to_shrink(life, kept=victim.kept)
            self._ends(life)
            self._gone(life, now + self._execution.save_seconds)
            return
        if victim.moves_to:
            self._world.keep(
                life, nominated=dict(enumerate(victim.moves_to)), pool=victim.moves_to_pool
            )
            self.moved += 1
        else:
            life.preempted += 1
        self._notify(life, now)

    def _move(self, move: Move, now: float) -> None:
        life = self._world.running[move.uid]
        self._world.keep(life, nominated=dict(enumerate(move.assignment)), pool=move.pool)
        self.moved += 1
        self._notify(life, now)

    def _notify(self, life: Life, now: float) -> None:
        if self._execution.save_seconds:
            life.save(now)
        else:
            life.fall_back(now=now, execution=self._execution)
        self._world.tell_to_go(life)
        self._gone(life, now + self._execution.save_seconds)
