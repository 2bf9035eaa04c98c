"""Convert the decisions of a cycle to one row per affected job, for people and programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import msgspec
from msgspec.structs import replace

from drumline_api.money import HOUR_SECONDS, cost, exact_text
from drumline_cli.decide.alternatives import Alternative
from drumline_cli.formatting import many, slice_words
from drumline_scheduler.decisions import (
    Blocked,
    BlockReason,
    Decisions,
    Move,
    NeedsNodes,
    Placed,
    Preemption,
    QueueEviction,
    Resized,
    Victim,
)
from drumline_scheduler.forecast.expected_starts import ExpectedStart
from drumline_scheduler.model import Admitted, Gang, Pool, Snapshot


class JobVerdict(StrEnum):
    """Decision about a job in this cycle."""

    # The text of each member is part of the JSON output. Scripts compare it.
    PLACED = "Placed"
    ADMITTED = "Admitted"
    """A workload other than a TrainingJob has quota. kube-scheduler places it in the pool."""
    REPAIRED = "Repaired"
    RESIZED = "Resized"
    PREEMPTED = "Preempted"
    """The job must save and release its nodes for another job."""
    MOVED = "Moved"
    """The job must save, and starts again on other nodes."""
    LEAVES = "Leaves"
    """The job must save and release its nodes, because its queue is stopped."""
    WAITS = "Waits"


class NewNodes(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Resources of a job per node, on nodes that it would start on.

    Attributes:
        nodes: number of nodes.
        gpus: GPUs per node.
        cpu_millis: CPU per node, in thousandths.
        memory_bytes: memory per node.
        ephemeral_bytes: disk per node.
        extended: other resources per node, by name.
    """

    nodes: int
    gpus: int = 0
    cpu_millis: int = 0
    memory_bytes: int = 0
    ephemeral_bytes: int = 0
    extended: dict[str, int] = {}


class NodesNeeded(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Nodes that are requested from the autoscaler.

    Attributes:
        pool: pool that must grow.
        nodes: number of new nodes.
        zone: zone of the new nodes. Absent: any zone.
        takes: resources of the job on all its nodes, new and existing.
    """

    pool: str
    nodes: int
    zone: str = ""
    takes: tuple[NewNodes, ...] = ()


class JobDecision(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """Decision about one job.

    Attributes:
        job: `namespace/name`.
        uid: uid of the job.
        queue: queue of the job.
        surplus: whether the row describes the job's surplus on spot nodes. Another row describes
            its other pods.
        pods: number of pods that the job has after the cycle, or requests.
        gpus: GPUs of these pods, or parts in a pool with partitions.
        parts_per_gpu: parts of a GPU in a pool with partitions, otherwise 1.
        verdict: kind of the decision.
        pool: pool in which the job is placed now, or after its victims have ended.
        nodes: node names by position.
        level: narrowest topology level at which one domain holds all pods.
        domain: path of that domain.
        asks: topology requirements of the spec or the layout, one clause each.
        reason: reason for waiting or preemption, from a closed list.
        message: the reason with figures and names.
        blockers: jobs whose end would free enough GPUs or quota.
        by: job that preempts this one.
        gpu_seconds_lost: work that the preemption loses, in GPU-seconds.
        remedy: smallest change that would let the job start, as a sentence.
        remedy_kind: kind of the remedy, from a closed list.
        reserved_at: start of the job's reservation (seconds since the epoch).
        expected_start: median of the start's forecast (seconds since the epoch).
        expected_start_by: 90th percentile of the start's forecast (seconds since the epoch).
        capacity: capacity type of the pool: OnDemand, Spot or Reserved.
        cost_per_hour: price of the job's GPUs per hour, as a decimal. Empty: no price is known.
        cost_at_most: price of the job's maximum runtime. Empty: it has no maximum runtime.
        needs_nodes: nodes that are requested from the autoscaler for the job.
        alternatives: alternatives to waiting, with their prices.
    """

    # Required fields come first. `omit_defaults` then keeps the JSON of a waiting job short.
    job: str
    uid: str
    queue: str
    pods: int
    gpus: int
    verdict: JobVerdict
    surplus: bool = False
    pool: str = ""
    nodes: tuple[str, ...] = ()
    level: str = ""
    domain: tuple[str, ...] = ()
    asks: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""
    blockers: tuple[str, ...] = ()
    by: str = ""
    gpu_seconds_lost: float = 0.0
    parts_per_gpu: int = 1
    remedy: str = ""
    remedy_kind: str = ""
    reserved_at: float | None = None
    expected_start: float | None = None
    expected_start_by: float | None = None
    capacity: str = ""
    cost_per_hour: str = ""
    cost_at_most: str = ""
    needs_nodes: NodesNeeded | None = None
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """The gangs of the cycle by uid, and the admitted among them."""

    gangs: Mapping[str, Gang]
    admitted: Mapping[str, Admitted]


def job_decisions(
    decisions: Decisions,
    *,
    snapshot: Snapshot,
    pending: Iterable[Gang],
    starts: Iterable[ExpectedStart] = (),
) -> list[JobDecision]:
    """Return a row for each job: first the gangs that start, then the preempted, then the waiting.

    Args:
        decisions: what was decided.
        snapshot: the cluster that it was decided for.
        pending: the waiting gangs of that cycle.
        starts: forecasts of when waiting gangs will start.
    """
    # Phase 1: index the gangs by uid. A pending gang replaces the admitted gang of the same job.
    admitted = {admission.gang.uid: admission for admission in snapshot.admitted}
    gangs = {uid: admission.gang for uid, admission in admitted.items()}
    gangs |= {gang.uid: gang for gang in pending}
    # A surplus gang has its own uid, but it is reachable only through its job.
    beside = [gang.surplus for gang in gangs.values() if gang.surplus is not None]
    known = _Known(gangs={gang.uid: gang for gang in beside} | gangs, admitted=admitted)
    # Phase 2: index the parts of the decision that add details to a waiting row.
    reserved = {reservation.uid: reservation.start_at for reservation in decisions.reservations}
    preemptions = {preemption.uid: preemption for preemption in decisions.preemptions}
    expected = {start.uid: start for start in starts}
    needs = {need.uid: _nodes_needed(need) for need in decisions.needs_nodes}
    pools = {pool.name: pool for pool in snapshot.pools}
    # Phase 3: make the rows in the order of the docstring.
    rows = (
        *(_placed(placed, known) for placed in decisions.placed),
        *(_resized(resized, known) for resized in decisions.resized),
        *(row for preemption in decisions.preemptions for row in _victims(preemption, known)),
        *(_moved(move, known) for move in decisions.moves),
        *(_leaves(eviction, known) for eviction in decisions.evictions),
        # A waiting job needs details of four sources: its preemption, reservation, nodes and
        # forecast.
        *(
            _with_forecast(
                _waiting(
                    blocked,
                    known,
                    preemption=preemptions.get(blocked.uid),
                    reserved_at=reserved.get(blocked.uid),
                    needs_nodes=needs.get(blocked.uid),
                ),
                expected.get(blocked.uid),
            )
            for blocked in decisions.blocked
        ),
    )
    # Phase 4: add prices, and replace the uid of a surplus gang by the uid of its job.
    return [
        _of_job(_with_cost(row, pools.get(row.pool), known.gangs[row.uid]), known.gangs[row.uid])
        for row in rows
    ]


def topology_asked(gang: Gang) -> tuple[str, ...]:
    """`every 8 pods in one rack if possible`: the broadest first."""
    whole = [f"all in one {gang.required_level}"] if gang.required_level else []
    if gang.preferred_level:
        whole.append(f"all in one {gang.preferred_level} if possible")
    pieces = (
        slice_words(pods=each.pods, level=each.level, required=each.required)
        for each in gang.slices
    )
    balanced = [f"balanced over each {gang.balanced_level}"] if gang.balanced_level else []
    return (*whole, *pieces, *balanced)


def _of_job(row: JobDecision, gang: Gang) -> JobDecision:
    # Users know the job, not the internal gang for its spot nodes.
    return replace(row, uid=gang.surplus_of, surplus=True) if gang.surplus_of else row


def _with_forecast(row: JobDecision, start: ExpectedStart | None) -> JobDecision:
    if start is None:
        return row
    return replace(row, expected_start=start.p50_at, expected_start_by=start.p90_at)


def _with_cost(row: JobDecision, pool: Pool | None, gang: Gang) -> JobDecision:
    """Return the row with the cost of the places that the job has, or gets after its victims."""
    if pool is None:
        return row
    # In a pool with partitions, the scheduler counts parts. Prices are per whole GPU.
    row, gpus = replace(row, parts_per_gpu=pool.parts_per_gpu), pool.in_gpus(row.gpus)
    # A job that leaves its nodes costs nothing there.
    if row.verdict in (JobVerdict.PREEMPTED, JobVerdict.LEAVES):
        return row
    # A pool without a price still has a capacity type, which users want to see.
    if pool.price is None:
        return replace(row, capacity=str(pool.capacity))
    longest = gang.max_runtime_seconds
    # The cost has an upper bound only if the job has a maximum runtime.
    seconds = None if longest is None else gpus * ceil(longest)
    return replace(
        row,
        capacity=str(pool.capacity),
        cost_per_hour=exact_text(cost(gpu_seconds=gpus * HOUR_SECONDS, price=pool.price)),
        cost_at_most=""
        if seconds is None
        else exact_text(cost(gpu_seconds=seconds, price=pool.price)),
    )


def _placed(placed: Placed, known: _Known) -> JobDecision:
    gang = known.gangs[placed.uid]
    # A repair replaces some pods of a running gang. All other placements start a gang.
    verdict = JobVerdict.REPAIRED if placed.replaced else JobVerdict.PLACED
    return JobDecision(
        job=placed.key,
        uid=placed.uid,
        queue=gang.queue,
        pods=len(placed.assignment),
        # `gpus_at` takes the number of main pods, and adds the GPUs of the role pods itself.
        gpus=gang.gpus_at(len(placed.assignment) - gang.extras),
        # kube-scheduler binds foreign pods, so the nodes here are only an estimate.
        verdict=JobVerdict.ADMITTED if gang.is_foreign else verdict,
        asks=topology_asked(gang),
        pool=placed.pool,
        nodes=() if gang.is_foreign else placed.assignment,
        level=placed.level or "",
        domain=placed.domain,
        message=placed.message,
    )


def _resized(resized: Resized, known: _Known) -> JobDecision:
    gang, held = known.gangs[resized.uid], known.admitted[resized.uid]
    # Kept pods come first, and new pods follow them.
    nodes = (*(held.assignment[position] for position in resized.kept), *resized.added)
    return JobDecision(
        job=resized.key,
        uid=resized.uid,
        queue=gang.queue,
        pods=len(nodes),
        gpus=gang.gpus_at(len(nodes) - gang.extras),
        verdict=JobVerdict.RESIZED,
        asks=topology_asked(gang),
        pool=resized.pool,
        nodes=nodes,
        level=resized.level or "",
        domain=resized.domain,
        message=resized.message or f"from {len(held.assignment)} to {len(nodes)} pods",
    )


def _victims(preemption: Preemption, known: _Known) -> Iterator[JobDecision]:
    for victim in preemption.victims:
        yield _victim(victim, by=preemption.key, known=known)


def _victim(victim: Victim, *, by: str, known: _Known) -> JobDecision:
    gang = known.gangs[victim.uid]
    # A victim either moves, shrinks to `kept`, or leaves all its nodes.
    moves = bool(victim.moves_to)
    pods = len(victim.moves_to or victim.kept or known.admitted[victim.uid].assignment)
    return JobDecision(
        job=victim.key,
        uid=victim.uid,
        queue=gang.queue,
        pods=pods,
        gpus=victim.gpus,
        verdict=JobVerdict.MOVED if moves else JobVerdict.PREEMPTED,
        pool=victim.moves_to_pool or known.admitted[victim.uid].pool,
        nodes=victim.moves_to,
        reason=str(victim.why),
        message=f"continues with {many(pods, 'pod')}" if victim.kept else "",
        by=by,
        gpu_seconds_lost=victim.gpu_seconds_lost,
    )


# A move may free whole domains for larger gangs. The message then counts them.
def _moved(move: Move, known: _Known) -> JobDecision:
    gang = known.gangs[move.uid]
    freed = f"frees {many(move.domains_freed, 'domain')}" if move.domains_freed else ""
    return JobDecision(
        job=move.key,
        uid=move.uid,
        queue=gang.queue,
        pods=len(move.assignment),
        gpus=gang.gpus_at(len(move.assignment) - gang.extras),
        verdict=JobVerdict.MOVED,
        pool=move.pool,
        nodes=move.assignment,
        reason=str(move.why),
        message=freed,
        gpu_seconds_lost=move.gpu_seconds_lost,
    )


def _leaves(eviction: QueueEviction, known: _Known) -> JobDecision:
    # The queue's stopPolicy evicts the job. No other job receives the nodes by this decision.
    held = known.admitted[eviction.uid]
    return JobDecision(
        job=eviction.key,
        uid=eviction.uid,
        queue=eviction.queue,
        pods=len(held.assignment),
        gpus=eviction.gpus,
        verdict=JobVerdict.LEAVES,
        pool=held.pool,
        reason=str(eviction.why),
        message=eviction.message,
        gpu_seconds_lost=eviction.gpu_seconds_lost,
    )


def _nodes_needed(need: NeedsNodes) -> NodesNeeded:
    return NodesNeeded(
        pool=need.pool,
        nodes=need.nodes,
        zone=need.zone,
        takes=tuple(
            NewNodes(
                nodes=nodes,
                gpus=share.gpus,
                cpu_millis=share.cpu_millis,
                memory_bytes=share.memory_bytes,
                ephemeral_bytes=share.ephemeral_bytes,
                extended=dict(share.extended),
            )
            # Equal nodes are grouped, because a gang of 500 nodes would print 500 equal lines.
            for share, nodes in Counter(need.shares).items()
        ),
    )


def _waiting(
    blocked: Blocked,
    known: _Known,
    *,
    preemption: Preemption | None,
    reserved_at: float | None,
    needs_nodes: NodesNeeded | None,
) -> JobDecision:
    gang = known.gangs[blocked.uid]
    # With a preemption in this cycle, the target nodes are known.
    pool, nodes = (preemption.pool, preemption.assignment) if preemption else ("", ())
    # Otherwise an earlier cycle chose the nodes, and the victims are still saving.
    if preemption is None and blocked.reason is BlockReason.WAITING_FOR_VICTIMS:
        pool, nodes = gang.nominated_pool, gang.nominated  # of an earlier cycle
    return JobDecision(
        job=blocked.key,
        uid=blocked.uid,
        queue=gang.queue,
        pods=gang.extras + gang.nodes,
        gpus=gang.gpus,
        verdict=JobVerdict.WAITS,
        asks=topology_asked(gang),
        pool=pool,
        nodes=nodes,
        reason=str(blocked.reason),
        message=blocked.message,
        blockers=blocked.blockers,
        remedy=str(blocked.remedy) if blocked.remedy else "",
        remedy_kind=str(blocked.remedy.kind) if blocked.remedy else "",
        reserved_at=reserved_at,
        needs_nodes=needs_nodes,
    )
