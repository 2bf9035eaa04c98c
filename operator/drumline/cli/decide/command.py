"""Runs `drumline decide -f FILES`: one scheduling cycle on objects from files."""

from __future__ import annotations

import argparse
from typing import Any, cast

from drumline.api.load import ApiError, parse
from drumline.api.policy import SchedulingPolicy
from drumline.cli.decide import cluster
from drumline.cli.decide.cluster import ClusterInput
from drumline.cli.decide.job_decisions import JobDecision, job_decisions
from drumline.cli.decide.json_output import as_json
from drumline.cli.decide.table import table
from drumline.cli.errors import BadInput
from drumline.cli.manifests import read_manifests
from drumline.cli.output import Output
from drumline.controller.conversion.queues import policy_of
from drumline.scheduling.cycle import decide
from drumline.scheduling.forecast import expected_starts
from drumline.scheduling.model import Policy
from drumline_trainer.contract import plain


def run(chosen: argparse.Namespace) -> Output:
    """The decisions, rendered. The exit code is 1 if an object could not be read.

    Raises:
        BadInput: a file is not usable.
    """
    policy = policy_of(_read_policy(chosen.policy) if chosen.policy else SchedulingPolicy())
    cluster_input = cluster.read(read_manifests(chosen.file))
    decisions = _decide(cluster_input, policy, forecast=not chosen.no_forecast)
    wide = chosen.output == "wide"
    text = (
        as_json(cluster_input, decisions)
        if chosen.output == "json"
        else _table(cluster_input, decisions, wide=wide)
    )
    return Output(text=text, exit_code=1 if cluster_input.unreadable else 0)


def _decide(cluster_input: ClusterInput, policy: Policy, *, forecast: bool) -> list[JobDecision]:
    snapshot, pending = cluster_input.snapshot, cluster_input.pending
    now = cluster_input.as_of
    decisions = decide(snapshot=snapshot, pending=pending, policy=policy, now=now)
    starts = (
        expected_starts(snapshot=snapshot, pending=pending, policy=policy, now=now)
        if forecast and decisions.blocked
        else ()
    )
    return job_decisions(decisions, snapshot=snapshot, pending=pending, starts=starts)


def _read_policy(name: str) -> SchedulingPolicy:
    manifests = read_manifests([name])
    if len(manifests) != 1:
        raise BadInput(f"{name}: one scheduling policy is wanted, {len(manifests)} are in it")
    manifest = manifests[0]
    inside: Any = manifest.raw.get("scheduling")
    at = "scheduling" if isinstance(inside, dict) else ""
    raw = cast("dict[str, Any]", inside) if at else manifest.raw
    try:
        return parse(SchedulingPolicy, raw, at=at)
    except ApiError as error:
        raise manifest.blame(error.path, str(error)) from None


def _table(cluster_input: ClusterInput, decisions: list[JobDecision], *, wide: bool) -> str:
    unread = (f"unreadable: {problem}" for problem in cluster_input.unreadable)
    remarks = "".join(f"{plain(remark)}\n" for remark in (*unread, *cluster_input.remarks))
    return table(decisions, now=cluster_input.as_of, wide=wide) + remarks
