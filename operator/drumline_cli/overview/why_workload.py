"""`drumline why TYPE/NAME`: explain the state of a pod, Job or other workload."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Final

from drumline.kube.kinds import PODS, Resource
from drumline.overview.objects import ClusterObjects
from drumline.overview.rows import WorkloadCard
from drumline.overview.why_workload import workload_card
from drumline.overview.workload_objects import PodObject, WorkloadObject
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.formatting import duration, gpus_of, many
from drumline_cli.overview import tables
from drumline_cli.overview.chosen_cluster import cluster_of
from drumline_cli.overview.read import WORKLOAD_KINDS, WantedKinds

KIND: Final = "why TYPE/NAME"
"""In the schema of the output."""


def card_of(
    chosen: argparse.Namespace, environment: Mapping[str, str]
) -> tuple[ClusterObjects, WorkloadCard]:
    """Return the rows that were read, and the card of the named object.

    Raises:
        CommandError: there is no such type or object, or the cluster refuses.
    """
    type_name, _, name = chosen.job.partition("/")
    resource = _resource(type_name)
    wanted = WantedKinds(namespace=None, queues=True, pods=True, workload=(resource, name))
    cluster, own = cluster_of(chosen, environment, wanted)
    asked = _requested_object(cluster, resource, namespace=own, name=name)
    if asked is None:
        raise NotAnswered(f"{type_name} {name!r} not found in namespace {own!r}")
    return cluster, workload_card(cluster, asked, plural=resource.plural)


def table(card: WorkloadCard, *, now: float) -> str:
    """Return the card as a sentence and a line for each part of it."""
    head = f"{card.workload}: {card.state}"
    lines = [f"{head}, {card.reason}" if card.reason else head]
    lines += [f"  {name:<10}{text}" for name, text in _card(card, now=now) if text]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _resource(type_name: str) -> Resource:
    """Return the resource of a singular, plural or full name (`jobsets.jobset.x-k8s.io`)."""
    kinds = (PODS, *WORKLOAD_KINDS)
    for resource in kinds:
        names = {resource.kind.lower(), resource.plural, f"{resource.plural}.{resource.group}"}
        if type_name.lower() in names:
            return resource
    known = ", ".join(resource.kind.lower() for resource in kinds)
    raise BadInput(
        f"{type_name}/: unknown type; the types are {known}; for a TrainingJob, give only its name"
    )


def _requested_object(
    cluster: ClusterObjects, resource: Resource, *, namespace: str, name: str
) -> PodObject | WorkloadObject | None:
    if resource is not PODS:
        return cluster.workloads.get(f"{namespace}/{resource.plural}/{name}")
    named = (
        pod
        for pod in cluster.pods
        if (pod.metadata.namespace, pod.metadata.name) == (namespace, name)
    )
    return next(named, None)


def _card(card: WorkloadCard, *, now: float) -> Iterator[tuple[str, str]]:
    yield "because", card.message
    if card.gpus:
        pods = f" by {many(card.pods, 'pod')}" if card.pods else ""
        for_how_long = "" if card.since is None else f", for {duration(now - card.since)}"
        yield "GPUs", f"{gpus_of(card.gpus, '')}{pods}{for_how_long}"
    if card.queue:
        yield "charged to", f" queue {card.queue}"
    if card.queued_at is not None:
        yield "waits", f"for {duration(now - card.queued_at)}"
    if card.position is not None:
        before = f"; {many(card.gpus_ahead, 'GPU')} are requested before it" if card.ahead else ""
        yield "place", f"{card.position} of {card.waiting} in queue {card.queue}{before}"
        yield "starts", tables.starts(card, now=now)
    for name, row in zip(("after", *[""] * len(card.ahead)), card.ahead, strict=False):
        start = tables.starts(row, now=now)
        yield name, f"{row.name}, {many(row.gpus, 'GPU')}, starts {start}"
    yield "quota", ", ".join(map(tables.quota_sentence, card.quotas))
    yield "budget", tables.budget_text(card.budget)
    yield from tables.holders(card.holders, now=now)
    for name, sentence in zip(("to do", *[""] * len(card.advice)), card.advice, strict=False):
        yield name, sentence
