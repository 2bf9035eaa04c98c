"""The life of a small cluster in which elastic gangs take their surplus from a spot pool.

As any other life (`scheduling_lifetime`), and by the same judge; what differs is that a job may be
two gangs, of which one goes with the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drumline_scheduler import Admitted, Decisions, Gang, Node, Resources
from drumline_scheduler.model import CapacityType, PriceRule, SpotRule, with_surplus
from tests.property.scheduling_lifetime import Life
from tests.property.scheduling_worlds import Feature

SPOT_POOL = "b"


class MixedLife(Life):
    """One cluster: pool a stays, pool b is spot."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.features |= {Feature.ELASTIC}
        self.pools = tuple(
            replace(pool, capacity=CapacityType.SPOT) if pool.name == SPOT_POOL else pool
            for pool in self.pools
        )
        self.bare += [
            Node(
                name=f"spot{i}",
                pool=SPOT_POOL,
                domains=("b0", "r0"),
                allocatable=Resources(gpus=4, cpu_millis=64000, pods=110),
            )
            for i in range(2)
        ]
        self.by_queue = self.random.random() < 0.5
        """Whether the queues have the rule, or the jobs."""
        if self.by_queue:
            rule = PriceRule(spot=SpotRule.SURPLUS)
            self.queues = tuple(replace(queue, price_rule=rule) for queue in self.queues)
        self.pending = [self.mixed(gang) for gang in self.pending]
        self.started = 0
        """Surplus gangs that were started."""

    def submit(self) -> None:
        super().submit()
        self.pending[-1] = self.mixed(self.pending[-1])

    def mixed(self, gang: Gang) -> Gang:
        """The gang over both pools, where it can be."""
        step = gang.slices[0].pods if gang.slices else 1
        if gang.nodes == step or gang.roles or gang.required_level or not gang.resizable:
            return replace(gang, pool="a", pools=())
        rule = gang.price_rule if self.by_queue else PriceRule(spot=SpotRule.SURPLUS)
        sizes = gang.sizes or tuple(range(step, gang.nodes + 1, step))
        elastic = replace(gang, pool=None, pools=(), price_rule=rule, sizes=sizes)
        return with_surplus(elastic, smallest=sizes[0])

    @property
    def events(self) -> list[Callable[[], None]]:
        return [*super().events, self.reclaim, self.reclaim]

    def reclaim(self) -> None:
        """A spot node is gone."""
        places = [i for i, node in enumerate(self.bare) if node.pool == SPOT_POOL and node.ready]
        if places:
            self.node_goes(self.random.choice(places))

    def finish(self) -> None:
        jobs = [uid for uid, held in self.held.items() if not held.gang.surplus_of]
        if not jobs:
            return
        gone = self.held.pop(self.random.choice(jobs))
        ends = [gone, *(self.held.pop(each.gang.uid) for each in self._beside(gone))]
        if self.random.random() < 0.5:
            for held in ends:
                self._run_on(held, range(len(held.assignment)))

    def _beside(self, held: Admitted) -> list[Admitted]:
        """The surplus that goes with a gang."""
        surplus = held.gang.surplus
        return [] if surplus is None or surplus.uid not in self.held else [self.held[surplus.uid]]

    def _carry_out(self, decisions: Decisions) -> None:
        surplus = {
            each.uid: each
            for each in decisions.placed
            if each.uid.endswith("/surplus") and each.uid not in self.held
        }
        nothing = [each for each in decisions.resized if not (each.kept or each.added)]
        rest = replace(
            decisions,
            placed=tuple(each for each in decisions.placed if each.uid not in surplus),
            resized=tuple(each for each in decisions.resized if each not in nothing),
        )
        super()._carry_out(rest)
        for held in list(self.held.values()):
            gang = held.gang.surplus
            if gang is not None and gang.uid in surplus:
                self.started += 1
                placed = surplus[gang.uid]
                self.held[gang.uid] = Admitted(
                    gang=gang,
                    pool=placed.pool,
                    assignment=placed.assignment,
                    reserved=frozenset(range(len(placed.assignment))),
                    admitted_at=held.admitted_at,
                )
        for each in nothing:
            gone = self.held.pop(each.uid)
            self._run_on(gone, gone.survivors)

    def _tell_to_go(self, held: Admitted, *, to: tuple[str, ...], pool: str) -> None:
        super()._tell_to_go(held, to=to, pool=pool)
        for beside in self._beside(held):
            super()._tell_to_go(beside, to=(), pool="")

    def _let_stay(self, held: Admitted) -> None:
        super()._let_stay(held)
        for beside in self._beside(held):
            super()._let_stay(beside)

    def _go(self, held: Admitted) -> None:
        if held.gang.uid not in self.held:
            return
        surplus = self._beside(held)
        if held.gang.surplus_of:
            del self.held[held.gang.uid]
            self._run_on(held, range(len(held.assignment)))
            return
        super()._go(held)
        for beside in surplus:
            self._go(beside)
