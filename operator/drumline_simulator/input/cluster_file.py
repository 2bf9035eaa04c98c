"""Read the cluster file: nodes, queues, policy, execution times, failures and prices.

::

    pools:
      - name: h100
        levels: [block, rack]          # broadest first
        nodes:
          - {count: 64, gpus: 8, domainNodes: {block: 32, rack: 8}}
    queues:
      - {name: org}
      - name: research
        parent: org
        quota: {h100: 256}
        preemption: {withinQueue: LowerPriority, reclaim: Any}
    defaultQueue: research             # for jobs whose queue is not listed
    policy: {waiting: Backfill, order: FairShare}
    execution: {saveSeconds: 30, checkpointSeconds: 1800, restartSeconds: 60}
    failures: {gpuHours: 8090, processShare: 0.13, hangShare: 0.1}
    outages:
      - {node: h100-0007, atSeconds: 3600, seconds: 600}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from drumline_scheduler import (
    CapacityType,
    MoveBudget,
    Node,
    Policy,
    Pool,
    PreemptionLimit,
    PreemptionRule,
    Queue,
    Reclaim,
    Resources,
    WithinQueue,
)
from drumline_scheduler.model import PriceRule, SpotRule
from drumline_simulator.cluster import Cluster, PoolTerms
from drumline_simulator.conditions.rates import FailureRates, SpotRates
from drumline_simulator.input.conditions_file import (
    execution_times,
    failure_rates,
    pool_terms,
    spot_rates,
)
from drumline_simulator.input.document import Section, parse_document
from drumline_simulator.workload import Execution, Outage

# The kubelet's default of --max-pods. It never limits GPU jobs.
_POD_SLOTS = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Contents of a cluster file."""

    cluster: Cluster
    policy: Policy
    execution: Execution
    outages: tuple[Outage, ...]
    default_queue: str
    failures: FailureRates = field(default_factory=FailureRates)
    spot: Mapping[str, SpotRates] = field(default_factory=dict[str, SpotRates])
    """Reclaim rates by spot pool."""


def parse(text: str, *, file: str) -> Setup:
    """Read a cluster file.

    Raises:
        InvalidFileError: a field is invalid. The error names the line and the field.
    """
    # Phase 1: pools with their nodes. Each section consumes its fields and rejects the rest.
    top = parse_document(text, file=file)
    pools: list[Pool] = []
    nodes: list[Node] = []
    terms: dict[str, PoolTerms] = {}
    spot: dict[str, SpotRates] = {}
    for section in top.sections("pools"):
        name, rates = section.text("name"), spot_rates(section.section("spot"))
        terms[name] = pool_terms(section)
        if rates is not None:
            spot[name] = rates
        pool = Pool(
            name=name,
            levels=section.texts("levels"),
            capacity=CapacityType.SPOT if rates else CapacityType.ON_DEMAND,
            # Prices are in millionths of a dollar, so that the scheduler compares integers.
            price=round(1e6 * terms[name].price_per_gpu_hour) or None,
        )
        nodes += _nodes(section, pool=pool)
        section.reject_unknown()
        pools.append(pool)
    # Phase 2: queues, which refer to the pools above.
    names = {pool.name for pool in pools}
    queues = [_queue(section, pools=names) for section in top.sections("queues")]
    default = top.text("defaultQueue", "")
    if default and default not in {queue.name for queue in queues}:
        raise top.error("defaultQueue", f"queue {default} does not exist")
    # With one queue, every job belongs to it, so the file need not name a default.
    if not default and len(queues) == 1:
        default = queues[0].name
    # Phase 3: the other sections. The order of keyword arguments is the order of error messages.
    setup = Setup(
        cluster=Cluster(nodes=tuple(nodes), pools=tuple(pools), queues=tuple(queues), terms=terms),
        policy=_policy(top.section("policy")),
        execution=execution_times(top.section("execution")),
        outages=tuple(_outages(top, nodes={node.name for node in nodes})),
        default_queue=default,
        failures=failure_rates(top.section("failures")),
        spot=spot,
    )
    # Last, because every read above marks its field as known.
    top.reject_unknown()
    return setup


def _nodes(section: Section, *, pool: Pool) -> Iterator[Node]:
    number = 0
    for group in section.sections("nodes"):
        count, gpus = group.integer("count", least=1), group.integer("gpus", least=1)
        per_domain = group.counts("domainNodes") or {}
        for level, size in per_domain.items():
            if level not in pool.levels:
                raise group.error("domainNodes", f"pool {pool.name} has no level {level}")
            if size < 1:
                raise group.error("domainNodes", f"a {level} must have at least 1 node")
        group.reject_unknown()
        begins = number
        for number in range(begins, begins + count):
            yield Node(
                name=f"{pool.name}-{number:04}",
                pool=pool.name,
                allocatable=Resources(gpus=gpus, pods=_POD_SLOTS),
                domains=tuple(
                    # Domains are filled in order: 32 nodes per block give nodes 0 to 31 the first
                    # block.
                    f"{level}-{number // per_domain[level]:03}" if level in per_domain else ""
                    for level in pool.levels
                ),
            )
        number = begins + count


def _queue(section: Section, *, pools: set[str]) -> Queue:
    # One loop reads the limits, so that all four check the pool names alike.
    limits = {
        name: section.counts(name)
        for name in ("quota", "borrowingLimit", "lendingLimit", "userLimit")
    }
    for name, limit in limits.items():
        for pool in limit or {}:
            if pool not in pools:
                raise section.error(name, f"pool {pool} does not exist")
    weight = section.number("weight", 1.0)
    # A weight of 0 would divide by zero in the fair shares.
    if not weight:
        raise section.error("weight", "must be above 0")
    queue = Queue(
        name=section.text("name"),
        nominal=limits["quota"] or {},
        parent=section.text("parent", "") or None,
        borrowing_limit=limits["borrowingLimit"],
        lending_limit=limits["lendingLimit"],
        user_limit=limits["userLimit"],
        weight=weight,
        min_runtime_seconds=section.number("minRuntimeSeconds", 0.0),
        preemption=_rule(section.section("preemption")),
        price_rule=_price_rule(section),
    )
    section.reject_unknown()
    return queue


def _price_rule(section: Section) -> PriceRule:
    return PriceRule(spot=section.choice("spot", SpotRule.PREFER) if section.has("spot") else None)


def _rule(section: Section | None) -> PreemptionRule:
    # No section means no preemption, the default of a TrainingQueue.
    if section is None:
        return PreemptionRule()
    rule = PreemptionRule(
        within_queue=section.choice("withinQueue", WithinQueue.NEVER),
        reclaim=section.choice("reclaim", Reclaim.NEVER),
    )
    section.reject_unknown()
    return rule


def _policy(section: Section | None) -> Policy:
    plain = Policy()
    if section is None:
        # Defaults come from the scheduler's own policy, so they cannot drift apart.
        return plain
    policy = Policy(
        waiting=section.choice("waiting", plain.waiting),
        order=section.choice("order", plain.order),
        restart_seconds=section.number("restartSeconds", plain.restart_seconds),
        priority_seconds=section.number("prioritySeconds", plain.priority_seconds),
        history_weight=section.number("historyWeight", plain.history_weight),
        history_seconds=section.number("historySeconds", plain.history_seconds, least=1),
        reservations=section.integer("reservations", plain.reservations),
        surplus=section.flag("surplus", plain.surplus),
        repairs_preempt=section.flag("repairsPreempt", plain.repairs_preempt),
        preemption_limit=_preemption_limit(section.section("preemptionLimit")),
        moves=_moves(section.section("moves")),
        move_back=section.flag("moveBack", plain.move_back),
    )
    section.reject_unknown()
    return policy


def _preemption_limit(section: Section | None) -> PreemptionLimit | None:
    if section is None:
        return None
    limit = PreemptionLimit(
        times=section.integer("times", 3),
        seconds=section.number("windowSeconds", 3600.0, least=1),
    )
    section.reject_unknown()
    return limit


def _moves(section: Section | None) -> MoveBudget | None:
    if section is None:
        return None
    plain = MoveBudget()
    budget = MoveBudget(
        gangs=section.integer("gangs", plain.gangs),
        gpu_seconds=section.number("gpuSeconds", plain.gpu_seconds),
    )
    section.reject_unknown()
    return budget


def _outages(top: Section, *, nodes: set[str]) -> Iterator[Outage]:
    for section in top.sections("outages", needed=False):
        outage = Outage(
            node=section.text("node"),
            at=section.number("atSeconds"),
            seconds=section.number("seconds"),
        )
        if outage.node not in nodes:
            raise section.error("node", f"node {outage.node} does not exist")
        section.reject_unknown()
        yield outage
