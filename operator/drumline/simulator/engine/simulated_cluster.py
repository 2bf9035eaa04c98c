"""The simulated cluster: who waits, who runs where, what the next cycle is shown.

All places are `reserved` and never counted in `Node.used`, so a node is one value for the whole
simulation unless it goes out of service, and a cycle is shown the very same objects again for
whatever did not change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from drumline.scheduling import Admitted, Gang, Policy, Snapshot
from drumline.simulator.arrivals import Execution
from drumline.simulator.cluster import Cluster
from drumline.simulator.engine.simulated_job import Life
from drumline.simulator.engine.usage_history import History
from drumline.simulator.results.outcome import Span

_REFRESH_SECONDS = 60.0
"""How often the scheduler learns how much work is at risk: as often as the operator does."""


class World:
    """The mutable state between two cycles."""

    def __init__(self, *, cluster: Cluster, policy: Policy, execution: Execution) -> None:
        self._cluster = cluster
        self._execution = execution
        self._nodes = {node.name: node for node in cluster.nodes}
        self._node_tuple = cluster.nodes
        self._history = History(
            half_life_seconds=policy.history_seconds, pools=cluster.gpus_by_pool()
        )
        self._uses_history = bool(policy.history_weight)
        self._all_places: dict[int, frozenset[int]] = {}
        self.waiting: dict[str, Life] = {}
        self.running: dict[str, Life] = {}
        self.spans: list[Span] = []

    def snapshot(self, now: float) -> Snapshot:
        """What the scheduler may know now."""
        return Snapshot(
            nodes=self._node_tuple,
            pools=self._cluster.pools,
            queues=self._cluster.queues,
            admitted=tuple(_admitted(life) for life in self.running.values()),
            history=self._history.at(now) if self._uses_history else {},
        )

    def pending(self) -> list[Gang]:
        """Those who wait."""
        return [life.gang for life in self.waiting.values()]

    def start(self, life: Life, *, pool: str, nodes: Sequence[str], now: float) -> None:
        """A waiting job gets its places."""
        del self.waiting[life.gang.uid]
        self.running[life.gang.uid] = life
        gang = replace(life.gang, nominated=(), nominated_pool="") if life.gang.nominated else None
        life.gang = gang or life.gang
        self._seat(life, pool=pool, nodes=tuple(nodes), admitted_at=now, now=now)

    def reseat(self, life: Life, *, nodes: Sequence[str], now: float, pool: str = "") -> None:
        """A running job goes on with other places: repaired, resized or moved."""
        held = _admitted(life)
        self._close(life, now)
        self._seat(
            life,
            pool=pool or held.pool,
            nodes=tuple(nodes),
            admitted_at=held.admitted_at,
            now=now,
        )

    def leave(self, life: Life, now: float) -> None:
        """A job gives all its places back, for ever or not."""
        self._close(life, now)
        del self.running[life.gang.uid]

    def requeue(self, life: Life) -> None:
        """A job that has left waits again, if it only moves with its new places kept for it."""
        held = _admitted(life)
        life.wait_again(execution=self._execution)
        if held.nominated:
            life.gang = replace(
                life.gang,
                nominated=tuple(node for _, node in sorted(held.nominated.items())),
                nominated_pool=held.nominated_pool or held.pool,
            )
        self.waiting[life.gang.uid] = life

    def tell_to_go(self, life: Life) -> None:
        """A job has got its notice."""
        life.admitted = replace(_admitted(life), leaving=True)
        life.version += 1

    def let_stay(self, life: Life) -> None:
        """A job that was to move goes on where it is."""
        held = _admitted(life)
        gone = {i for i, name in enumerate(held.assignment) if not self._nodes[name].ready}
        life.admitted = replace(
            held, leaving=False, lost=held.lost | gone, nominated={}, nominated_pool=""
        )
        life.version += 1

    def tell_to_shrink(self, life: Life, *, kept: Sequence[int]) -> None:
        """A job has got notice for some of its places; it has them until they are given up."""
        held = _admitted(life)
        leaving = frozenset(range(len(held.assignment))) - frozenset(kept)
        life.admitted = replace(held, giving_up=leaving)
        life.version += 1

    def shrink(self, life: Life, now: float) -> None:
        """It gives up what it was told to."""
        held = _admitted(life)
        self.reseat(
            life,
            nodes=[n for i, n in enumerate(held.assignment) if i not in held.giving_up],
            now=now,
        )

    def keep(self, life: Life, *, nominated: Mapping[int, str], pool: str) -> None:
        """Places are kept for a running job: for lost positions, or to move to."""
        life.admitted = replace(_admitted(life), nominated=nominated, nominated_pool=pool)

    def break_places(self, life: Life, *, lost: frozenset[int]) -> None:
        """Some places of a job are gone for good; it does nothing until they are replaced."""
        held = _admitted(life)
        life.admitted = replace(held, lost=held.lost | lost)
        life.version += 1

    def set_ready(self, name: str, *, ready: bool) -> None:
        """A node goes out of service or comes back."""
        self._nodes[name] = replace(self._nodes[name], ready=ready)
        self._node_tuple = tuple(self._nodes.values())

    def on_node(self, name: str) -> list[Life]:
        """Running jobs with a place on a node."""
        return [one for one in self.running.values() if name in _admitted(one).assignment]

    def refresh_risks(self, now: float) -> None:
        """Tell the scheduler how much work each running job would lose."""
        for life in self.running.values():
            if now - life.refreshed_at >= _REFRESH_SECONDS:
                life.refreshed_at = now
                risk = life.at_risk(now=now, execution=self._execution)
                life.admitted = replace(_admitted(life), gpu_seconds_at_risk=risk)

    def _seat(
        self, life: Life, *, pool: str, nodes: tuple[str, ...], admitted_at: float, now: float
    ) -> None:
        places = self._all_places.setdefault(len(nodes), frozenset(range(len(nodes))))
        admitted = Admitted(
            gang=life.gang,
            pool=pool,
            assignment=nodes,
            reserved=places,
            admitted_at=admitted_at,
        )
        life.go(admitted=admitted, now=now, execution=self._execution)
        self._history.change(queue=life.gang.queue, pool=pool, gpus=admitted.gpus, now=now)

    def _close(self, life: Life, now: float) -> None:
        held = _admitted(life)
        self._history.change(queue=life.gang.queue, pool=held.pool, gpus=-held.gpus, now=now)
        life.held_seconds += now - life.span_began
        self.spans.append(
            Span(
                job=life.index,
                begins_at=life.span_began,
                ends_at=now,
                gpus=held.gpus,
                nodes=held.assignment,
            )
        )


def _admitted(life: Life) -> Admitted:
    if life.admitted is None:
        raise ValueError(f"{life.gang.key} holds no places")
    return life.admitted
