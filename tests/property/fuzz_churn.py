"""Clusters that change between cycles, beside hostile objects that come and go (`cycle_fuzz`).

The world of `fuzz_world` is played for 30 to 60 cycles. Before each cycle some things happen: nodes
are lost, cordoned or get other labels, alone or 64 at once; running jobs end or lose pods; foreign
pods leave; quotas and priorities change; time passes. Hostile objects come in waves, each of other
kinds, and waves are deleted again. In some cycles the decision is compared with the one of a call
without a cache.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from drumline.kube import codec
from drumline_scheduler import Decisions, decide
from tests.property.fuzz_settings import PRIORITIES, drawn_setting
from tests.property.fuzz_world import (
    DRAWN_FIELDS,
    FEW_NAMESPACES,
    KINDS,
    LATE,
    CycleWorld,
    Played,
    is_decided,
)
from tests.property.tenant_bounds import AT_BOUNDS, Json, add_job, metadata, node_view, raw

CYCLES: Final = (30, 60)
"""Fewest and most cycles of a world."""
_COMPARED: Final = 0.15
"""Share of the cycles that are decided once more without a cache."""
_WAVE: Final = 0.2
_DELETION: Final = 0.15


class ChurnWorld(CycleWorld):
    """A cluster that changes between cycles.

    Args:
        seed: chooses everything.
        nodes: number of nodes.
        compares: whether some cycles are decided twice.
    """

    def __init__(self, seed: int, *, nodes: int = 500, compares: bool = True) -> None:
        self._churn = Random(f"churn {seed}")
        super().__init__(seed, nodes=nodes)
        self._nodes, self._compares = nodes, compares
        self._pools = tuple(self.setting.pools) or ("h",)
        self._changes: dict[int, Json] = {}
        """How nodes differ from their first state, by number. None of them is deleted."""
        self._gone: set[int] = set()
        # Many namespaces take turns (`queueing.deferral`).
        self._most_late = LATE if self.setting.namespaces <= FEW_NAMESPACES else 6 * LATE
        self._waves: list[list[Callable[[], object]]] = []
        self._foreign: list[Callable[[], object]] = []
        """Delete foreign pods, the oldest first."""
        self._number = 0
        """Number of foreign pods so far."""
        self._modest: dict[str, int] = {}
        """First cycles of modest jobs that are not decided, by key."""

    def play(self) -> Played:
        """Decide many cycles with changes between them."""
        dice = self._churn
        self.begin()
        played = Played(about=self.about)
        cycles = dice.randint(*CYCLES)
        for number in range(1, cycles + 1):
            happened = self._happen(number)
            took, decisions = self.cycle(number)
            played.seconds.append(took)
            played.events.append(happened)
            played.faults += len(decisions.faults)
            self._note_modest(number, decisions=decisions, played=played)
            is_compared = dice.random() < _COMPARED
            if self._compares and is_compared and self.given is not None:
                again = replace(self.given, late_from=decisions.late_at)
                played.differing += decide(again) != decisions
        gc.unfreeze()
        return played

    def _note_modest(self, number: int, *, decisions: Decisions, played: Played) -> None:
        for key, first in list(self._modest.items()):
            if is_decided(key, by=decisions):
                del self._modest[key]
            elif number >= first + self._most_late - 1:
                del self._modest[key]
                played.late += 1
                played.events[-1] += f" LATE {key}"

    def _happen(self, number: int) -> str:
        """Change the cluster before a cycle, and return what happened."""
        dice, happened = self._churn, list[str]()
        if number == 1 or dice.random() < _WAVE:
            happened.append(self._wave(number))
        if self._waves and dice.random() < _DELETION:
            wave = self._waves.pop(dice.randrange(len(self._waves)))
            for delete in wave:
                delete()
            happened.append(f"{len(wave)} deleted")
        for _ in range(dice.choice([0, 1, 1, 2, 4])):
            event = dice.choice(
                [
                    *(self._lose_nodes, self._lose_nodes, self._restore_nodes, self._label_nodes),
                    *(self._end_jobs, self._break_jobs, self._leave_foreign, self._edit_queue),
                    *(self._change_priority, self._wait),
                ]
            )
            happened.append(event())
        return ", ".join(filter(None, happened))

    def _wave(self, number: int) -> str:
        dice = self._churn
        drawable = sorted([*AT_BOUNDS, *(DRAWN_FIELDS if self.setting.varied else ())])
        drawn = dice.sample(KINDS, dice.choice([1, 1, 2])) if dice.random() < 0.5 else ["job"]
        self.kinds, self.count = tuple(drawn), dice.choice([1, 10, 100])
        self.fields = tuple(dice.sample(drawable, dice.randint(1, 3)))
        self._deletions = []
        self.arrive(first=number * 100, modest=f"calm-{number}")
        self._waves.append(self._deletions)
        kinds = ", ".join(self.kinds)
        fields = f" with {', '.join(self.fields)}" if "job" in self.kinds else ""
        return f"{self.count} of {kinds}{fields}"

    def _add_modest(self, name: str, *, number: int) -> None:
        if not name.startswith("calm"):
            super()._add_modest(name, number=number)
            return
        queue = [{"queue": "modest"}] if self.setting.varied else []
        add_job(self.state, name, *queue, number=number, namespace=name)
        self._modest[f"{name}/{name}"] = int(name.removeprefix("calm-"))

    def _some_nodes(self) -> range:
        count = self._churn.choice([1, 1, 8, 64])
        first = self._churn.randrange(self._nodes // count) * count
        return range(first, min(self._nodes, first + count))

    def _set_node(self, index: int, changes: Json, *, is_gone: bool = False) -> None:
        pool = self._pools[index * len(self._pools) // self._nodes]
        old, new = (
            node_view(index, nodes=self._nodes, pool=pool, changes=each)
            for each in (self._changes.get(index), changes)
        )
        was_gone = index in self._gone
        if is_gone:
            self._gone.add(index)
        else:
            self._gone.discard(index)
        self._changes[index] = changes
        self.state.nodes.on_node(None if was_gone else old, None if is_gone else new)

    def _lose_nodes(self) -> str:
        dice, nodes = self._churn, self._some_nodes()
        how = dice.choice(["cordoned", "not ready", "deleted"])
        names = {f"n{index:03}" for index in nodes}
        for index in nodes:
            changes = {**self._changes.get(index, {})}
            if how == "cordoned":
                changes["unschedulable"] = True
            elif how == "not ready":
                changes["ready"] = False
            self._set_node(index, changes, is_gone=how == "deleted")
        displaces = dice.random() < 0.5
        for uid, held in self._running.items():
            hit = frozenset(i for i, name in enumerate(held.assignment) if name in names)
            if hit and how != "cordoned":
                self._running[uid] = replace(
                    held,
                    lost=held.lost | hit,
                    reserved=held.reserved - hit,
                    displaced=held.displaced - hit,
                )
            elif hit - held.lost and displaces:
                self._running[uid] = replace(held, displaced=held.displaced | (hit - held.lost))
        return f"{len(nodes)} nodes {how}"

    def _restore_nodes(self) -> str:
        dice = self._churn
        touched = sorted({*self._gone, *(i for i, each in self._changes.items() if each)})
        some = touched if dice.random() < 0.5 else touched[: dice.choice([1, 8])]
        for index in some:
            self._set_node(index, {})
        names = {f"n{index:03}" for index in some}
        for uid, held in self._running.items():
            if held.displaced and not names.isdisjoint(held.assignment):
                self._running[uid] = replace(held, displaced=frozenset())
        return f"{len(some)} nodes back"

    def _label_nodes(self) -> str:
        nodes, dice = self._some_nodes(), self._churn
        labels = {"rack": f"x{dice.randrange(5)}"} if dice.random() < 0.7 else {"gpu": "none"}
        for index in nodes:
            if index not in self._gone:
                changes = self._changes.get(index, {})
                self._set_node(index, {**changes, "labels": labels})
        return f"{len(nodes)} nodes with other labels"

    def _end_jobs(self) -> str:
        dice = self._churn
        some = dice.sample(sorted(self._running), min(len(self._running), dice.choice([1, 8, 64])))
        for uid in some:
            del self._running[uid]
        return f"{len(some)} jobs end"

    def _break_jobs(self) -> str:
        dice = self._churn
        some = dice.sample(sorted(self._running), min(len(self._running), dice.choice([1, 8, 64])))
        for uid in some:
            held = self._running[uid]
            lost = frozenset({dice.randrange(len(held.assignment))})
            self._running[uid] = replace(
                held,
                lost=held.lost | lost,
                reserved=held.reserved - lost,
                displaced=held.displaced - lost,
            )
        return f"{len(some)} jobs break"

    def _leave_foreign(self) -> str:
        """Let foreign pods leave, and others come to random nodes."""
        dice = self._churn
        count = dice.choice([1, 8, 64])
        leave, self._foreign = self._foreign[:count], self._foreign[count:]
        for delete in leave:
            delete()
        before, self._deletions = self._deletions, []
        for _ in range(count):
            requests = {"nvidia.com/gpu": dice.choice(["8", "4", "1"])}
            node = f"n{dice.randrange(self._nodes):03}"
            spec = {"containers": [{"name": "c", "resources": {"requests": requests}}]}
            self._number += 1
            self._pod(f"foreign{self._number}", spec, node=node)
        self._foreign += self._deletions
        self._deletions = before
        return f"{len(leave)} foreign pods leave, {count} come"

    def _edit_queue(self) -> str:
        """Replace the specs of some queues."""
        dice = self._churn
        if not self.setting.queues:
            quota = {"gpuPool": "h", "nominalGpus": dice.choice([8, 4000, 100_000])}
            self._queue("q", {"quotas": [quota]})
            return "another quota"
        other = drawn_setting(dice.randrange(10**6), nodes=self._nodes).queues
        names = dice.sample(sorted(self.setting.queues), 1)
        for name in names:
            quotas = [
                {"gpuPool": pool, "nominalGpus": dice.choice([8, 64, 400, 4000, 100_000])}
                for pool in self._pools
            ]
            spec = {**self.setting.queues[name], "quotas": quotas}
            preemption = other.get(name, {}).get("preemption")
            if preemption:
                spec["preemption"] = preemption
            self._queue(name, spec)
        return "another quota"

    def _change_priority(self) -> str:
        dice = self._churn
        name = dice.choice(sorted(PRIORITIES))
        value = dice.choice([-1000, 0, 500, 1000])
        view = codec.priority_class(raw({"metadata": metadata(name), "value": value}))
        self.state.on_priority_class(None, view)
        return f"priority {name} is {value}"

    def _wait(self) -> str:
        seconds = self._churn.choice([5, 60, 700])
        self.later += seconds
        return f"{seconds} s"
