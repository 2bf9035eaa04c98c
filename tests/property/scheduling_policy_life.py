"""The life of a small cluster under all policies, in which gangs may not leave in time.

It is a life (`scheduling_lifetime`) with the features that other lives lack: overrides, delays,
groups, quotas in percent, quotas that are taken back, groups of foreign pods. A gang that should
have left counts as staying after a while.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from drumline_scheduler import Admitted, CycleInput, Decisions, Resources, Snapshot, decide
from drumline_scheduler.decisions import Preemption, Victim
from tests.property.scheduling_checks import judged
from tests.property.scheduling_lifetime import Life
from tests.property.scheduling_worlds import Feature, World, some_gang, world

TIME_TO_LEAVE = 300.0
"""From the word to its deadline."""


class PolicyLife(Life):
    """One cluster."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.features = frozenset(self.random.sample(list(Feature), self.random.randint(2, 6)))
        first = world(self.random.randrange(1 << 30), self.features)
        self.percents, self.groups = dict(first.percents), list(first.groups)
        self.queues, self.pools = first.snapshot.queues, first.snapshot.pools
        self.held = {held.gang.uid: held for held in first.snapshot.admitted}
        self.bare = [
            replace(node, used=node.used - self._bound(node.name, first))
            for node in first.snapshot.nodes
        ]
        self.pending = list(first.pending)
        self.policy = replace(
            self._policy(), preemption_delay_seconds=self.random.choice([0.0, 0.0, 1000.5, 1200.0])
        )
        self.hung = 0
        """Gangs that did not leave in time."""

    @property
    def events(self) -> list[Callable[[], None]]:
        return [*super().events, self.hang, self.hang, self.submit_group]

    def submit_group(self) -> None:
        """Two jobs that start together come."""
        self.count += 1
        for name in ("x", "y"):
            item = some_gang(
                self.random,
                f"g{self.count:02}{name}",
                features=self.features,
                at=float(self.count),
            )
            self.pending.append(replace(item, group=f"g{self.count}", group_gangs=2))

    def hang(self) -> None:
        """Time passes, and those who were told to go are still there."""
        self.clock += self.random.choice([TIME_TO_LEAVE, 2 * TIME_TO_LEAVE])
        self.hung += sum(held.leaving for held in self.held.values())

    def cycle(self) -> Decisions:
        asked = World(
            snapshot=super().snapshot(),
            pending=tuple(self.pending),
            policy=self.policy,
            now=self.clock,
            percents=self.percents,
            groups=tuple(self.groups),
        )
        asked = replace(asked, snapshot=self._with_groups(asked.snapshot))
        self.asked, self.decided = asked, Decisions()
        decisions = decide(
            CycleInput(
                snapshot=asked.given(), pending=asked.pending, policy=self.policy, now=self.clock
            ),
            cache=self.cache,
        )
        self.decided = decisions
        problems = judged(self._without_overdue(asked), decisions)
        if self.random.random() < 0.3 and asked.shuffled(self.random).decide() != decisions:
            problems.append("another order of the input, or no cache, decides otherwise")
        self._is(problems)
        self._carry_out(decisions)
        return decisions

    def _with_groups(self, snapshot: Snapshot) -> Snapshot:
        nodes = tuple(
            replace(node, used=sum((group.on(node.name) for group in self.groups), node.used))
            for node in snapshot.nodes
        )
        return replace(snapshot, nodes=nodes)

    def _without_overdue(self, asked: World) -> World:
        """Return the snapshot in which no late gang may be touched."""

        def now(held: Admitted) -> Admitted:
            late = held.leaves_by is not None and (
                held.leaves_by + self.policy.overdue_seconds <= self.clock
            )
            if not late:
                return held
            return replace(
                held,
                leaving=False,
                departs=False,
                giving_up=frozenset(),
                lost=frozenset(),  # it gets no answer
                displaced=frozenset(),
                nominated={},
                nominated_pool="",
                preemptible=False,
                set_aside=True,
                is_overdue=True,
                leaves_by=None,
            )

        admitted = tuple(map(now, asked.snapshot.admitted))
        return replace(asked, snapshot=replace(asked.snapshot, admitted=admitted))

    def _carry_out(self, decisions: Decisions) -> None:
        for eviction in decisions.evictions:
            held = self.held[eviction.uid]
            self.held[eviction.uid] = replace(
                held, leaving=True, departs=True, leaves_by=self.clock + TIME_TO_LEAVE
            )
        of_pods = {group.converted()[0].gang.uid: group for group in self.groups}
        preemptions = list[Preemption]()
        for each in decisions.preemptions:
            victims = list[Victim]()
            for victim in each.victims:
                if victim.uid in of_pods:
                    gone = of_pods[victim.uid]
                    self.groups.remove(gone)
                    self.ending += gone.pods
                else:
                    victims.append(victim)
            preemptions.append(replace(each, victims=tuple(victims)))
        super()._carry_out(replace(decisions, preemptions=tuple(preemptions)))

    def _tell_to_go(self, held: Admitted, *, to: tuple[str, ...], pool: str) -> None:
        super()._tell_to_go(held, to=to, pool=pool)
        leaver = self.held[held.gang.uid]
        self.held[held.gang.uid] = replace(leaver, leaves_by=self.clock + TIME_TO_LEAVE)

    def _let_stay(self, held: Admitted) -> None:
        super()._let_stay(replace(held, departs=False, leaves_by=None))

    def _lose(self, held: Admitted, places: frozenset[int]) -> None:
        super()._lose(held, places)
        if not held.leaving:
            kept = self.held[held.gang.uid]
            self.held[held.gang.uid] = replace(kept, leaving=False, departs=False)

    def _goes_on(self) -> bool:
        answer = super()._goes_on()
        return answer or bool(self.decided.evictions)

    @staticmethod
    def _bound(name: str, first: World) -> Resources:
        total = sum((group.on(name) for group in first.groups), start=Resources())
        for held in first.snapshot.admitted:
            for position, place in enumerate(held.assignment):
                if place == name:
                    total += held.gang.request_of(position)
        return total
