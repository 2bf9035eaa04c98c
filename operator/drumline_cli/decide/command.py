"""Runs `drumline decide`: one scheduling cycle on objects of a cluster, of files, or of both."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import msgspec

from drumline.kube.kinds import NAMESPACES, TRAINING_JOBS
from drumline.overview.overrides import override_text
from drumline.overview.rows import OverrideRow
from drumline_cli.cluster_access import chosen_credentials
from drumline_cli.commands import Output
from drumline_cli.decide import cluster, live_objects
from drumline_cli.decide.alternatives_text import alternatives_text
from drumline_cli.decide.cluster import ClusterInput
from drumline_cli.decide.cycle import decided, fault_remark, read_policy
from drumline_cli.decide.installation import read_installation
from drumline_cli.decide.job_decisions import JobDecision
from drumline_cli.decide.live_objects import LiveObjects
from drumline_cli.decide.overrides import bills
from drumline_cli.decide.table import table
from drumline_cli.errors import BadInput
from drumline_cli.manifests import ManifestDocument, read_manifests
from drumline_contract import plain
from drumline_scheduler.decisions import GangFault


class DecidedCycle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Decisions of `drumline decide`.

    Attributes:
        as_of: when the newest of the files was written (seconds since the epoch).
        verdicts: a row for each job that the cycle concerns.
        unreadable: objects that could not be read, by file, line and field.
        remarks: waiting jobs that no cycle considers, with the reason; what is not known here.
        overrides: jobs that may preempt within the guarantee of other queues, and the GPU-hours
            that they keep from them, with the jobs that end for them in this cycle.
    """

    as_of: float
    verdicts: Sequence[JobDecision]
    unreadable: tuple[str, ...]
    remarks: tuple[str, ...]
    overrides: tuple[OverrideRow, ...]


def as_json(cluster_input: ClusterInput, decisions: Sequence[JobDecision]) -> str:
    """Return a JSON object, ending with a newline. Its field names are an interface: they stay."""
    document = DecidedCycle(
        as_of=cluster_input.as_of,
        verdicts=decisions,
        unreadable=cluster_input.unreadable,
        remarks=cluster_input.remarks,
        overrides=bills(cluster_input.overrides, decisions, now=cluster_input.as_of),
    )
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Return the decisions, rendered. The exit code is 1 if an object would be refused.

    Raises:
        CommandError: a file is not usable, or the cluster refuses.
    """
    # Phase 1: the policy and the objects.
    policy = read_policy(chosen.policy)
    objects = _objects(chosen, environment)
    cluster_input = cluster.read(
        objects.manifests, installation=read_installation(chosen.policy), policy=policy
    )
    cluster_input = replace(cluster_input, remarks=(*cluster_input.remarks, *objects.remarks))
    # Phase 2: one cycle, with forecasts and prices unless the user declined.
    faults: list[GangFault] = []
    decisions = decided(
        cluster_input,
        policy,
        forecast=not chosen.no_forecast,
        priced=True,
        # With added objects the stored forecasts no longer apply.
        as_written=not (chosen.live and (chosen.file or chosen.manifest)),
        on_fault=faults.append,
    )
    remarks = (*cluster_input.remarks, *map(fault_remark, faults))
    cluster_input = replace(cluster_input, remarks=remarks)
    wide = chosen.output == "wide"
    text = (
        as_json(cluster_input, decisions)
        if chosen.output == "json"
        else _table(cluster_input, decisions, wide=wide, forecast=not chosen.no_forecast)
    )
    return Output(text=text, exit_code=1 if _is_broken(cluster_input) else 0)


def _objects(chosen: argparse.Namespace, environment: Mapping[str, str]) -> LiveObjects:
    """Return the objects to decide. An object of a file replaces the cluster's object."""
    # Objects of the user come last, so they replace those of the cluster.
    given = tuple(read_manifests(chosen.file or ()))
    if chosen.manifest:
        given = (*given, _of_text(chosen.manifest))
    # Files alone are a complete input. The cluster is read only with --live.
    if chosen.file and not chosen.live:
        if chosen.context or chosen.kubeconfig:
            raise BadInput(
                "--file excludes the cluster's objects; add --live to decide the"
                " files together with them"
            )
        return LiveObjects(manifests=given)
    credentials = chosen_credentials(chosen, environment)
    live = asyncio.run(live_objects.read(credentials))
    known = {each.namespaced_name[1] for each in (*live.manifests, *given) if _is_namespace(each)}
    given = tuple(_located(each, own=credentials.namespace, known=known) for each in given)
    return LiveObjects(manifests=(*live.manifests, *given), remarks=live.remarks)


def _is_namespace(document: ManifestDocument) -> bool:
    return document.kind == NAMESPACES.kind and not document.group


def _located(document: ManifestDocument, *, own: str, known: set[str]) -> ManifestDocument:
    """Return a job of a file in the namespace in which kubectl would create it.

    Args:
        document: an object of a file.
        own: the namespace of the kubeconfig's context.
        known: all namespaces; empty: they may not be listed.

    Raises:
        BadInput: the namespace does not exist.
    """
    metadata = document.raw.get("metadata")
    if document.kind != TRAINING_JOBS.kind or not isinstance(metadata, dict):
        return document
    named = cast("dict[str, Any]", metadata)
    named = {**named, "namespace": named.get("namespace") or own}
    located = replace(document, raw={**document.raw, "metadata": named})
    namespace, _ = located.namespaced_name
    if known and namespace not in known:
        problem = f'namespaces "{namespace}" not found; create it or correct metadata.namespace'
        raise located.blame("metadata.namespace", problem)
    return located


def _of_text(text: str) -> ManifestDocument:
    """Parse an argument that contains an object. Only JSON is accepted, as programs write it.

    Raises:
        BadInput: the text is not a JSON object.
    """
    try:
        raw: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"--manifest: no JSON: {plain(str(error))}") from None
    if not isinstance(raw, dict):
        raise BadInput("--manifest: an API object must be a mapping")
    return ManifestDocument(
        file="--manifest", raw=cast("dict[str, Any]", raw), find=None, as_of=time.time()
    )


def _table(
    cluster_input: ClusterInput, decisions: list[JobDecision], *, wide: bool, forecast: bool
) -> str:
    unread = (f"unreadable: {problem}" for problem in cluster_input.unreadable)
    remarks = "".join(f"{plain(remark)}\n" for remark in (*unread, *cluster_input.remarks))
    now = cluster_input.as_of
    instead = alternatives_text(decisions, now=now)
    # An unreadable input without decisions must not look like an idle cluster.
    if not decisions and _is_broken(cluster_input):
        return remarks
    owed = "".join(
        f"{override_text(row)}\n" for row in bills(cluster_input.overrides, decisions, now=now)
    )
    return table(decisions, now=now, wide=wide, forecast=forecast) + instead + owed + remarks


def _is_broken(cluster_input: ClusterInput) -> bool:
    return bool(cluster_input.unreadable) or cluster_input.broken
