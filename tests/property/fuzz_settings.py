"""Draw the cluster around hostile objects: queues, pools, policy, running jobs (`cycle_fuzz`).

A third of the settings is plain: one queue, one pool, one namespace. Other settings differ in
several ways at once, because the phases of a cycle meet there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from drumline_scheduler import (
    Admitted,
    Gang,
    MoveBudget,
    Ordering,
    Policy,
    PreemptionLimit,
    Resources,
    WaitingRule,
)
from tests.property.tenant_bounds import LEVELS, NOW, Json

PRIORITIES: Final = {"high": 1000, "low": -1000}
"""Priority classes that jobs may name."""
_GPUS: Final = 8
"""GPUs of a node."""
_LARGEST_ROLES: Final = (1, 1, 2, 3, 7, 11, 30, 100, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cluster before hostile objects come."""

    pools: dict[str, Json] = field(default_factory=dict[str, Json])
    """Specs of pools by name, in the order in which they share the nodes. Empty: one pool."""
    queues: dict[str, Json] = field(default_factory=dict[str, Json])
    """Specs of queues by name. Empty: the world's own queue."""
    namespaces: int = 1
    """Namespaces of hostile objects."""
    policy: Policy | None = None
    """None: the world's own policy."""
    running: tuple[Admitted, ...] = ()
    applies: bool = False
    """True if decisions take effect before the next cycle."""
    varied: bool = False
    """True if jobs differ in queue, priority and user as well."""
    about: str = "plain"


def drawn_setting(seed: int, *, nodes: int) -> Setting:
    """Return the setting of a world."""
    dice = Random(f"setting {seed}")
    if dice.random() < 0.3:
        return Setting()
    pools = _pools(dice)
    queues = _queues(dice, pools=tuple(pools))
    policy = _policy(dice)
    share = dice.choice([0.0, 0.5, 1.0])
    running = tuple(_running(dice, pools=tuple(pools), queues=tuple(queues), share=share, of=nodes))
    namespaces = dice.choice([1, 1, 8, 100])
    applies = dice.random() < 0.5
    broken = sum(bool(held.lost) for held in running)
    about = (
        f"{len(pools)} pools ({sum('autoscaling' in each for each in pools.values())} grow),"
        f" {len(queues)} queues, {len(running)} run ({broken} broken), {namespaces} namespaces,"
        f" {policy.waiting}, {policy.order}"
        f"{', surplus' if policy.surplus else ''}{', moves' if policy.moves else ''}"
        f"{', repairs preempt' if policy.repairs_preempt else ''}"
        f"{', delayed' if policy.preemption_delay_seconds else ''}{', applied' if applies else ''}"
    )
    return Setting(
        pools=pools,
        queues=queues,
        namespaces=namespaces,
        policy=policy,
        running=running,
        applies=applies,
        varied=True,
        about=about,
    )


def _policy(dice: Random) -> Policy:
    return Policy(
        waiting=dice.choice(list(WaitingRule)),
        order=dice.choice(list(Ordering)),
        surplus=dice.random() < 0.3,
        repairs_preempt=dice.random() < 0.5,
        preemption_limit=PreemptionLimit(times=2, seconds=600) if dice.random() < 0.2 else None,
        preemption_delay_seconds=dice.choice([0.0, 0.0, 3.0]),
        moves=MoveBudget(gangs=8, gpu_seconds=1e6) if dice.random() < 0.4 else None,
        move_back=dice.random() < 0.3,
    )


def _pools(dice: Random) -> dict[str, Json]:
    names = ["h", *(f"p{number}" for number in range(dice.choice([0, 0, 1, 3])))]
    pools: dict[str, Json] = {}
    for name in names:
        levels = dice.sample(LEVELS, dice.choice([0, 1, 2, 4]))
        ordered = [level for level in LEVELS if level in levels]
        pool: Json = {"nodeSelector": {"gpu": name}}
        if ordered:
            pool["topologyLevels"] = [{"name": level, "nodeLabel": level} for level in ordered]
        if dice.random() < 0.4:
            kind = dice.choice(["OnDemand", "Spot", "Reserved"])
            pool["capacity"] = {"type": kind, "pricePerGpuHour": dice.choice(["1", "2.50"])}
        if dice.random() < 0.25:
            amounts = {"cpu": "64", "memory": "1Ti", "nvidia.com/gpu": "8"}
            labels = {level: f"new-{level}" for level in ordered}
            node = {"allocatable": amounts, **({"labels": labels} if labels else {})}
            zones = {"zones": ["a", "b", "c"]} if dice.random() < 0.4 else {}
            pool["autoscaling"] = {"maxNodes": 2000, "node": node, **zones}
        pools[name] = pool
    return pools


def _queues(dice: Random, *, pools: tuple[str, ...]) -> dict[str, Json]:
    """Return queue `q`, `modest` and further ones below one root, or `q` alone with `modest`."""
    further = [f"q{number}" for number in range(dice.choice([0, 2, 8, 30]))]
    queues: dict[str, Json] = {}
    has_cohort = bool(further) and dice.random() < 0.8
    if has_cohort:
        root = [{"gpuPool": pool, "nominalGpus": dice.choice([0, 800])} for pool in pools]
        queues["root"] = {"quotas": root}
        queues["middle"] = {"quotas": root, "parent": "root"}
    for name in ("q", "modest", *further):
        queues[name] = _queue(dice, name, pools=pools, has_cohort=has_cohort)
    return queues


def _queue(dice: Random, name: str, *, pools: tuple[str, ...], has_cohort: bool) -> Json:
    quotas: list[Json] = []
    for pool in pools:
        quota: Json = {"gpuPool": pool, "nominalGpus": dice.choice([8, 64, 400, 4000, 100_000])}
        if dice.random() < 0.2:
            quota["nominalPercent"] = dice.choice([1, 10, 50])
        if has_cohort and dice.random() < 0.2:
            quota["borrowingLimitGpus"] = dice.choice([0, 64, 4000])
        if dice.random() < 0.2:
            quota["userLimitGpus"] = dice.choice([8, 64, 4000])
        quotas.append(quota)
    queue: Json = {"quotas": quotas, "weight": dice.choice([1, 1, 10])}
    if has_cohort:
        queue["parent"] = dice.choice(["root", "middle"])
    if dice.random() < 0.5:
        queue["preemption"] = {
            "withinQueue": dice.choice(["Never", "LowerPriority"]),
            "reclaim": dice.choice(["Never", "LowerPriority", "Any", "FairShare"]),
        }
    else:
        queue["preemption"] = {"withinQueue": "Never", "reclaim": "Never"}
    if dice.random() < 0.2:
        queue["spot"] = dice.choice(["Prefer", "Avoid", "Surplus"])
    if dice.random() < 0.2:
        queue["budget"] = {"gpuHours": 1_000_000, "userGpuHours": 1000, "windowDays": 30}
    if dice.random() < 0.2:
        queue["foreignPods"] = {"borrowed": "Evict"}
    if dice.random() < 0.2:
        queue["aboveQuota"] = "Evict"
    if name != "modest" and dice.random() < 0.2:
        queue["overrides"] = [
            {
                "job": f"team/job-{number:04}",
                "until": "2027-02-01T00:00:00Z",
                "grantedBy": "admin",
                "reason": "demo",
            }
            for number in range(8)
        ]
    return queue


def _running(
    dice: Random, *, pools: tuple[str, ...], queues: tuple[str, ...], share: float, of: int
) -> list[Admitted]:
    """Return jobs on a share of the nodes: elastic and fixed ones, some with lost pods."""
    breaks = dice.choice([0.0, 0.02, 0.3])
    sizes = dice.choice([(1,), (1, 2, 8), (16, 64)])
    users = [name for name in queues if name not in ("root", "middle")]
    running: list[Admitted] = []
    first = 0
    while first < share * of:
        pool = first * len(pools) // of
        size = min(dice.choice(sizes), _end(pool, pools=len(pools), of=of) - first)
        name = f"runs{len(running):04}"
        may_grow = size > 1 and dice.random() < 0.3
        gang = Gang(
            key=f"team-c/{name}",
            uid=name,
            queue=dice.choice(users),
            nodes=size + 1 if may_grow else size,
            sizes=tuple(range(1, size + 2)) if may_grow else (),
            per_pod=Resources(gpus=dice.choice([_GPUS, _GPUS, 4]), cpu_millis=4000, pods=1),
            queued_at=float(len(running)),
            priority=dice.choice([-1000, 0, 0, 1000]),
        )
        lost = dice.random() < breaks
        places = tuple(f"n{index:03}" for index in range(first, first + size))
        running.append(
            Admitted(
                gang=gang,
                pool=pools[pool],
                assignment=places,
                reserved=frozenset(range(1 if lost else 0, size)),
                lost=frozenset({0}) if lost else frozenset(),
                admitted_at=NOW - dice.choice([60, 86_400]),
                gpu_seconds_at_risk=float(dice.randint(0, 6000)),
                ends_at=dice.choice([None, NOW + dice.randint(60, 86_400)]),
            )
        )
        first += size
    return running


def _end(pool: int, *, pools: int, of: int) -> int:
    """Return the number of the first node behind a pool."""
    return next((n for n in range(of) if n * pools // of > pool), of)


def some_roles(dice: Random) -> Json:
    """Return roles of any number and sizes, from those of an exact search to the largest."""
    roles: list[Json] = []
    for number in range(dice.randint(1, 8)):
        role: Json = {
            "name": f"r{number}",
            "nodes": dice.choice(_LARGEST_ROLES),
            "command": ["x"],
            "resources": {
                "cpu": f"{dice.choice([10, 1000, 60_000])}m",
                "memory": f"{100 - 7 * number}Mi",
            },
        }
        if dice.random() < 0.4:
            role["gpusPerNode"] = dice.choice([1, 2, 8, 64])
        roles.append(role)
    return {"roles": roles, "nodes": dice.choice([1, 2, 64, 500])}


def some_topology(dice: Random) -> Json:
    """Return a request for levels and slices, with a number of pods that the slices divide."""
    nodes = dice.choice([2, 16, 64, 480])
    topology: Json = {}
    if dice.random() < 0.5:
        topology["required"] = dice.choice(LEVELS)
    if dice.random() < 0.5:
        topology["preferred"] = dice.choice([each for each in LEVELS if each not in topology])
        if topology.get("required") == topology["preferred"]:
            del topology["required"]
    if dice.random() < 0.6:
        levels = sorted(dice.sample(range(1, 4), dice.randint(1, 2)))
        topology["slices"] = [
            {"level": LEVELS[level], "nodes": piece, "required": dice.random() < 0.7}
            for level, piece in zip(levels, (nodes, 2), strict=False)
        ]
    if dice.random() < 0.3 or not topology:
        topology["balanced"] = dice.choice(LEVELS)
    return {"nodes": nodes, "topology": topology}


def some_elastic(dice: Random) -> Json:
    """Return a range of sizes."""
    nodes = dice.choice([4, 64, 500, 10_000])
    template: dict[str, Any] = {"image": "x", "command": ["a"], "launch": "PerGpu"}
    return {"nodes": nodes, "minNodes": dice.choice([1, nodes // 2]), "template": template}
