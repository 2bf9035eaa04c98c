"""A long random life of a small cluster, one cycle after every event, made of one seed.

Jobs come and end, break and are repaired, are told to leave or to give up places and do so late,
move and shrink and grow; nodes fail, return, are cordoned and closed; strangers move in; quotas
change. After every event the invariants must hold of the cycle, brute force must agree with it
where nothing is on its way (`scheduling_checks`), the order of the input must decide nothing, nor
what the cycle remembers of earlier ones. In the end everybody who was told to go goes, and the
cluster has to calm down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from random import Random

from drumline_scheduler import (
    Admitted,
    CycleCache,
    CycleInput,
    Decisions,
    Gang,
    MoveBudget,
    Ordering,
    Policy,
    Resized,
    Resources,
    Snapshot,
    WaitingRule,
    decide,
)
from drumline_scheduler.preemption.pauses import pause_of
from drumline_scheduler.resources import NOTHING
from tests.property.scheduling_checks import judged
from tests.property.scheduling_worlds import DRAWN, NOW, Feature, World, bound, some_gang, world

FEWEST_EVENTS, MOST_EVENTS = 3, 9
MOST_ROUNDS = 60
"""A cluster to which nothing happens any more has calmed down by then."""


class LifeError(AssertionError):
    """What is wrong, with all that led to it."""


class Life:
    """One cluster and what happens to it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(f"life {seed}")
        wanted = self.random.sample(list(DRAWN), self.random.randint(2, 6))
        self.features = frozenset(wanted)
        first = world(self.random.randrange(1 << 30), self.features)
        self.queues = first.snapshot.queues
        self.pools = first.snapshot.pools
        self.held = {held.gang.uid: held for held in first.snapshot.admitted}
        self.bare = [
            replace(node, used=node.used - bound(node.name, list(self.held.values())))
            for node in first.snapshot.nodes
        ]
        self.pending = list(first.pending)
        self.ending: list[tuple[str, Resources]] = []
        self.remaining: list[Admitted] = []
        """What gangs hold beside their places: pods that have not ended yet."""
        self.in_doubt: list[Admitted] = []
        """Gangs whose start was written, though the answer got lost."""
        self.preempted: dict[str, list[float]] = {}
        """Times at which gangs left for others, by uid."""
        self.clock = NOW
        self.count = 0
        self.policy = self._policy()
        self.cache = CycleCache()
        self.log: list[str] = []
        self.asked: World | None = None
        """The last cycle."""
        self.decided = Decisions()

    def live(self, most_events: int = MOST_EVENTS) -> None:
        """Some events, and then none.

        Raises:
            LifeError: when a cycle is not as it has to be.
        """
        for _ in range(self.random.randint(FEWEST_EVENTS, most_events)):
            self.happen(self.random.choice(self.events))
        self.calm_down()

    def happen(self, event: Callable[[], None]) -> None:
        """An event and the cycle after it."""
        self.log.append(event.__name__)
        event()
        self.cycle()

    def calm_down(self) -> None:
        """Nothing happens any more, but that everybody does what it was told to.

        Raises:
            LifeError: when a cycle is not as it has to be, or it has no end.
        """
        for _ in range(MOST_ROUNDS):
            if not self._goes_on():
                return
        self._is(["does not calm down"])

    @property
    def events(self) -> list[Callable[[], None]]:
        """What may happen; more often what happens more often."""
        usual = [self.submit, self.submit, self.submit, self.finish, self.bind, self.work]
        late = [self.leave, self.leave, self.shrink, self.pods_end, self.settle]
        bad = [self.lose, self.fail, self.come_back, self.cordon, self.close, self.strangers]
        return [*usual, *late, *bad, self.give_up, self.change_quota]

    def cycle(self) -> Decisions:
        """One cycle, judged and carried out."""
        asked = World(
            snapshot=self.snapshot(),
            pending=tuple(map(self._pausing, self.pending)),
            policy=self.policy,
            now=self.clock,
        )
        self.asked, self.decided = asked, Decisions()
        decisions = decide(
            CycleInput(
                snapshot=asked.snapshot, pending=asked.pending, policy=self.policy, now=self.clock
            ),
            cache=self.cache,
        )
        self.decided = decisions
        problems = judged(asked, decisions)
        if self.random.random() < 0.3 and asked.shuffled(self.random).decide() != decisions:
            problems.append("another order of the input, or no cache, decides otherwise")
        self._is(problems)
        self._carry_out(decisions)
        return decisions

    def snapshot(self) -> Snapshot:
        """The cluster as the cycle sees it."""
        going: dict[str, Resources] = {}
        for name, amounts in self.ending:
            going[name] = going.get(name, Resources()) + amounts
        admitted = [*self.held.values(), *self.remaining, *map(_doubtful, self.in_doubt)]
        return Snapshot(
            nodes=tuple(
                replace(
                    node,
                    used=node.used + bound(node.name, admitted) + going.get(node.name, NOTHING),
                    terminating=going.get(node.name, NOTHING),
                )
                for node in self.bare
            ),
            pools=self.pools,
            queues=self.queues,
            admitted=tuple(admitted),
        )

    # what may happen

    def submit(self) -> None:
        self.count += 1
        item = some_gang(
            self.random,
            f"j{self.count:02}",
            features=self.features,
            at=float(self.count),
            hero=self.random.random() < 0.5,
        )
        self.pending.append(item)

    def give_up(self) -> None:
        """A waiting job is deleted, whether places are kept for it or not."""
        if self.pending:
            self.pending.pop(self.random.randrange(len(self.pending)))

    def finish(self) -> None:
        """A job ends or is deleted; its pods may run on for a while."""
        if self.held:
            gone = self.held.pop(self.random.choice(list(self.held)))
            if self.random.random() < 0.5:
                self._run_on(gone, range(len(gone.assignment)))

    def bind(self) -> None:
        """The promised pods of a gang come into being."""
        for held in self._some(lambda held: bool(held.reserved)):
            self.held[held.gang.uid] = replace(held, reserved=frozenset())

    def work(self) -> None:
        """Time passes; somebody has work that no checkpoint holds yet."""
        self.clock += self.random.choice([1.0, 30.0, 300.0])
        for held in self._some(lambda _: True):
            at_risk = float(self.random.randint(0, 600))
            self.held[held.gang.uid] = replace(held, gpu_seconds_at_risk=at_risk)

    def leave(self) -> None:
        """Somebody who was told to go has saved; its pods are being deleted, and it waits again."""
        for held in self._some(lambda held: held.leaving):
            self._go(held)

    def shrink(self) -> None:
        """Somebody who was told to give places up has done so."""
        for held in self._some(lambda held: bool(held.giving_up) and not held.leaving):
            self._give_places_up(held)

    def pods_end(self) -> None:
        """What was being deleted is gone."""
        self.ending.clear()
        self.remaining.clear()

    def settle(self) -> None:
        """What was in doubt is read: the write took effect, or it did not."""
        for admitted in self.in_doubt:
            if self.random.random() < 0.5:
                self.held[admitted.gang.uid] = admitted
            else:
                self.pending.append(admitted.gang)
        self.in_doubt.clear()

    def lose(self) -> None:
        """A pod is gone for good."""
        for held in self._some(lambda held: not held.leaving):
            place = self.random.randrange(len(held.assignment))
            self._lose(held, frozenset({place}))

    def fail(self) -> None:
        """A node is gone, with all that ran there."""
        self.node_goes(self.random.randrange(len(self.bare)))

    def node_goes(self, place: int) -> None:
        name = self.bare[place].name
        self.bare[place] = replace(self.bare[place], ready=False)
        for held in list(self.held.values()):
            places = {i for i, where in enumerate(held.assignment) if where == name}
            if places and not held.leaving:
                self._lose(held, frozenset(places))

    def come_back(self) -> None:
        self._change(ready=True, unschedulable=False, closed="")
        self.held = {uid: replace(held, displaced=frozenset()) for uid, held in self.held.items()}

    def cordon(self) -> None:
        self._change(unschedulable=True)
        self._displace()

    def close(self) -> None:
        self._change(closed="spot reclaim")
        self._displace()

    def _displace(self) -> None:
        """In every other life the gangs on nodes that are about to go have saved, and may move."""
        if self.seed % 2:
            return
        going = {node.name for node in self.bare if node.unschedulable or node.closed}
        for uid, held in self.held.items():
            there = (i for i, name in enumerate(held.assignment) if name in going)
            if not (held.lost or held.leaving or held.giving_up):
                self.held[uid] = replace(held, displaced=frozenset(there))

    def strangers(self) -> None:
        """Somebody else's pods come to a node, or leave it."""
        self._change(used=Resources(gpus=self.random.choice([0, 0, 1]), cpu_millis=1000))

    def change_quota(self) -> None:
        """An owner gives a queue more or less."""
        changed = self.random.choice(self.queues)
        nominal = {pool: self.random.choice([0, 2, 4, 1000]) for pool in changed.nominal}
        self.queues = tuple(
            replace(queue, nominal=nominal) if queue is changed else queue for queue in self.queues
        )

    # what follows from decisions

    def _carry_out(self, decisions: Decisions) -> None:
        waiting = {gang.uid: gang for gang in self.pending}
        for placed in decisions.placed:
            if placed.uid in self.held:
                before = self.held[placed.uid]
                self._run_on(before, placed.replaced)
                self.held[placed.uid] = replace(
                    before,
                    assignment=placed.assignment,
                    lost=frozenset(),
                    displaced=frozenset(),
                    reserved=before.reserved | frozenset(placed.replaced),
                    nominated={},
                    nominated_pool="",
                )
            else:
                gang = replace(waiting.pop(placed.uid), nominated=(), nominated_pool="")
                admitted = Admitted(
                    gang=gang,
                    pool=placed.pool,
                    assignment=placed.assignment,
                    reserved=frozenset(range(len(placed.assignment))),
                    admitted_at=self.clock,
                )
                if self.random.random() < 0.1 and not gang.roles and not gang.group:
                    self.in_doubt.append(admitted)
                else:
                    self.held[placed.uid] = admitted
        for resized in decisions.resized:
            self.held[resized.uid] = _resized(self.held[resized.uid], resized)
        for preemption in decisions.preemptions:
            for victim in preemption.victims:
                held = self.held[victim.uid]
                if victim.kept:
                    up = frozenset(range(len(held.assignment))) - frozenset(victim.kept)
                    self.held[victim.uid] = replace(held, giving_up=up)
                else:
                    self._tell_to_go(held, to=victim.moves_to, pool=victim.moves_to_pool)
            if preemption.uid in waiting:
                waiting[preemption.uid] = replace(
                    waiting[preemption.uid],
                    nominated=preemption.assignment,
                    nominated_pool=preemption.pool,
                )
            else:
                kept = {i: preemption.assignment[i] for i in preemption.replaced}
                self.held[preemption.uid] = replace(self.held[preemption.uid], nominated=kept)
        for move in decisions.moves:
            self._tell_to_go(self.held[move.uid], to=move.assignment, pool=move.pool)
        for uid in decisions.stay:
            self._let_stay(self.held[uid])
        self.pending = list(waiting.values())

    def _is(self, problems: list[str]) -> None:
        if problems:
            raise LifeError(f"life {self.seed}, {', '.join(self.log)}: {problems}")

    def _tell_to_go(self, held: Admitted, *, to: tuple[str, ...], pool: str) -> None:
        self.held[held.gang.uid] = replace(
            held, leaving=True, nominated=dict(enumerate(to)), nominated_pool=pool if to else ""
        )

    def _let_stay(self, held: Admitted) -> None:
        held = replace(held, leaving=False, nominated={}, nominated_pool="")
        gone = {node.name for node in self.bare if not node.ready}
        self._lose(held, frozenset(i for i, name in enumerate(held.assignment) if name in gone))

    def _go(self, held: Admitted) -> None:
        del self.held[held.gang.uid]
        self._run_on(held, range(len(held.assignment)))
        places = tuple(name for _, name in sorted(held.nominated.items()))
        if not places:  # a gang that moves is not preempted
            self.preempted.setdefault(held.gang.uid, []).append(self.clock)
        pool = (held.nominated_pool or held.pool) if places else ""
        self.pending.append(replace(held.gang, nominated=places, nominated_pool=pool))

    def _pausing(self, gang: Gang) -> Gang:
        """The gang as the operator shows it: one that was preempted often evicts nobody."""
        pause = pause_of(self.preempted.get(gang.uid, ()), now=self.clock)
        return replace(gang, refusal=pause) if pause else gang

    def _give_places_up(self, held: Admitted) -> None:
        self._run_on(held, held.giving_up)
        kept = [i for i in range(len(held.assignment)) if i not in held.giving_up]
        self.held[held.gang.uid] = _renumbered(held, kept)

    def _run_on(self, held: Admitted, positions: Iterable[int]) -> None:
        """The bound pods at these positions are being deleted; a queue may pay for them, or none.

        A pod may also not be deleted yet: then its room is not expected back.
        """
        charged, leaving = self.random.random() < 0.7, self.random.random() < 0.8
        for position in sorted(set(positions) - held.lost - held.reserved):
            name, request = held.assignment[position], held.gang.request_of(position)
            if charged:
                self.count += 1
                self.remaining.append(
                    _beside(held, suffix=str(self.count), nodes=(name,), request=request)
                )
                self.remaining[-1] = replace(self.remaining[-1], leaving=leaving)
            else:
                self.ending.append((name, request))

    def _lose(self, held: Admitted, places: frozenset[int]) -> None:
        self.held[held.gang.uid] = replace(
            held,
            lost=held.lost | places,
            reserved=held.reserved - places,
        )

    def _goes_on(self) -> bool:
        """Everybody does at once what it was told to; whether there was anything to do."""
        self.log.append("calm")
        for held in list(self.held.values()):
            if held.leaving:
                self._go(held)
            elif held.giving_up:
                self._give_places_up(held)
            else:
                self.held[held.gang.uid] = replace(held, reserved=frozenset())
        answer = bool(self.ending or self.remaining or self.in_doubt)
        self.pods_end()
        self.settle()
        decisions = self.cycle()
        return answer or bool(
            decisions.placed
            or decisions.preemptions
            or decisions.resized
            or decisions.moves
            or decisions.stay
        )

    def _some(self, fits: Callable[[Admitted], bool]) -> list[Admitted]:
        result = [held for held in self.held.values() if fits(held)]
        return [self.random.choice(result)] if result else []

    def _change(self, **changes: object) -> None:
        place = self.random.randrange(len(self.bare))
        self.bare[place] = replace(self.bare[place], **changes)  # type: ignore[arg-type]

    def _policy(self) -> Policy:
        random = self.random
        backfill = Feature.RESERVATION in self.features
        return Policy(
            waiting=WaitingRule.BACKFILL
            if backfill
            else random.choice([WaitingRule.BEST_EFFORT, WaitingRule.BEST_EFFORT]),
            reservations=random.choice([1, 2, 16]),
            order=random.choice([Ordering.PRIORITY, Ordering.FAIR_SHARE]),
            restart_seconds=0.0,
            priority_seconds=0.0,
            surplus=random.random() < 0.3,
            repairs_preempt=random.random() < 0.3,
            moves=random.choice([None, None, MoveBudget(gangs=3, gpu_seconds=1e6)]),
        )


def _beside(held: Admitted, *, suffix: str, nodes: tuple[str, ...], request: Resources) -> Admitted:
    """What a gang holds beside its places."""
    gang = Gang(
        key=held.gang.key,
        uid=f"{held.gang.uid}/{suffix}",
        queue=held.gang.queue,
        nodes=len(nodes),
        per_pod=request,
        queued_at=0.0,
        user=held.gang.user,
    )
    return Admitted(
        gang=gang, pool=held.pool, assignment=nodes, preemptible=False, is_residual=True
    )


def _doubtful(held: Admitted) -> Admitted:
    """What a gang may hold whose start is in doubt."""
    request, nodes = held.gang.per_pod, held.assignment
    beside = _beside(held, suffix="doubt", nodes=nodes, request=request)
    return replace(beside, reserved=frozenset(range(len(nodes))))


def _resized(held: Admitted, resized: Resized) -> Admitted:
    """The gang with its new size; what it gave up is free at once."""
    kept = _renumbered(held, resized.kept, resized.added)
    return replace(
        kept,
        reserved=kept.reserved | frozenset(range(len(resized.kept), len(kept.assignment))),
    )


def _renumbered(held: Admitted, kept: Sequence[int], added: tuple[str, ...] = ()) -> Admitted:
    new = {old: place for place, old in enumerate(kept)}

    def moved(places: frozenset[int]) -> frozenset[int]:
        return frozenset(new[old] for old in places if old in new)

    return replace(
        held,
        assignment=(*(held.assignment[old] for old in kept), *added),
        reserved=moved(held.reserved),
        lost=moved(held.lost),
        displaced=moved(held.displaced),
        giving_up=frozenset(),
        nominated={},
    )
