"""One scheduling cycle of the operator's own, and the policy of a file that it follows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, cast

from msgspec.structs import replace

from drumline.controller.queues.conversion import policy_of
from drumline_api.load import ApiError, parse
from drumline_api.policy import SchedulingPolicy
from drumline_cli.decide.alternatives import alternatives
from drumline_cli.decide.cluster import ClusterInput
from drumline_cli.decide.installation import CHART_KEYS
from drumline_cli.decide.job_decisions import JobDecision, job_decisions
from drumline_cli.errors import BadInput
from drumline_cli.manifests import read_manifests
from drumline_contract import plain
from drumline_scheduler.cycle import decide
from drumline_scheduler.cycle_input import CycleInput
from drumline_scheduler.decisions import Blocked, GangFault
from drumline_scheduler.forecast.expected_starts import (
    ExpectedStart,
    KnownFutures,
    expected_starts,
)
from drumline_scheduler.forecast.isolation import OnFault, ignored
from drumline_scheduler.forecast.line_forecast import line_forecast
from drumline_scheduler.forecast.lines import CANNOT_START
from drumline_scheduler.model import Policy


def decided(
    cluster_input: ClusterInput,
    policy: Policy,
    *,
    forecast: bool,
    priced: bool = False,
    as_written: bool = False,
    futures: KnownFutures | None = None,
    on_fault: OnFault = ignored,
) -> list[JobDecision]:
    """Return the decisions of the cycle, one row per affected job.

    Args:
        cluster_input: the cluster at the start of the cycle.
        policy: policy of the operator.
        forecast: whether the starts of waiting jobs are forecast.
        priced: whether the alternatives of waiting jobs are computed, with their prices.
        as_written: whether the objects are the cluster's own. Then a job that waits for the reason
            in its status keeps the expected start that the operator has written there. The operator
            knows the errors of its earlier forecasts.
        futures: futures of an earlier call; these are used if they are the same.
        on_fault: takes each exception on a job whose row does not show it.
    """
    now = cluster_input.as_of
    cycle = CycleInput(
        snapshot=cluster_input.snapshot, pending=cluster_input.pending, policy=policy, now=now
    )
    decisions = decide(cycle)
    answered = {each.uid for each in decisions.blocked}
    for fault in decisions.faults:
        if fault.uid not in answered:
            on_fault(fault)
    starts: dict[str, ExpectedStart] = {}
    if forecast and decisions.blocked:
        simulated = expected_starts(cycle, known=futures, on_fault=on_fault)
        made = line_forecast(
            cycle, blocked=decisions.blocked, simulated=simulated, on_fault=on_fault
        )
        starts = {start.uid: start for start in made.starts}
        starts.update(cluster_input.node_demands.starts_after(decisions, now=now))
        if as_written:
            starts.update(_written_starts(cluster_input, decisions.blocked))
    rows = job_decisions(
        decisions, snapshot=cycle.snapshot, pending=cycle.pending, starts=starts.values()
    )
    if not priced:
        return rows
    choices = alternatives(cycle, decisions=decisions, starts=starts, on_fault=on_fault)
    return [replace(row, alternatives=choices.get(row.uid, ())) for row in rows]


def fault_remark(fault: GangFault) -> str:
    """Return the sentence about an exception on one job."""
    return (
        f"{fault.key or 'the cycle'}: the scheduler failed (stage {fault.stage}: {fault.error});"
        " other jobs are decided without it. Please report it"
    )


def _written_starts(
    cluster_input: ClusterInput, blocked: Iterable[Blocked]
) -> Iterator[tuple[str, ExpectedStart]]:
    """Yield the operator's expected starts of jobs that wait as their statuses say, by uid."""
    for each in blocked:
        known = cluster_input.written.get(each.uid)
        if known is not None and known.reason == each.reason and each.reason not in CANNOT_START:
            yield each.uid, known.start


def read_policy(name: str | None) -> Policy:
    """Return the policy in a file, or in the chart's values.

    None, and values without: the default one.

    Raises:
        BadInput: the file has none.
    """
    return policy_of(SchedulingPolicy() if name is None else _parsed(name))


def _parsed(name: str) -> SchedulingPolicy:
    manifests = read_manifests([name])
    if len(manifests) != 1:
        raise BadInput(f"{name}: want one scheduling policy, got {len(manifests)}")
    manifest = manifests[0]
    inside: Any = manifest.raw.get("scheduling")
    if inside is None and any(key in manifest.raw for key in CHART_KEYS):
        return SchedulingPolicy()  # as `helm get values` prints what was set alone
    at = "scheduling" if isinstance(inside, dict) else ""
    raw = cast("dict[str, Any]", inside) if at else manifest.raw
    if not at and "kind" in raw:
        kind = plain(str(raw["kind"]))
        raise manifest.blame(
            "kind", f"a {kind} is not a scheduling policy; name the chart's values"
        )
    try:
        return parse(SchedulingPolicy, raw, at=at)
    except ApiError as error:
        known = ", ".join(
            str(field.alias or name) for name, field in SchedulingPolicy.model_fields.items()
        )
        problem = str(error).replace(
            "Extra inputs are not permitted", f"unknown field; want {known}"
        )
        raise manifest.blame(error.path, problem) from None
