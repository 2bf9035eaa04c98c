"""Runs `drumline sweep`: the jobs of a sweep as a table, the lowest loss first."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any, Final, cast

from drumline.kube import errors, reads
from drumline.kube.kinds import TRAINING_JOBS
from drumline_api.base import GROUP
from drumline_cli.cluster_access import chosen_credentials, cluster_client, not_answered
from drumline_cli.columns import columns
from drumline_cli.commands import Output
from drumline_cli.errors import NotAnswered
from drumline_cli.jobs.clone import LABEL_SWEEP, PARAMETERS
from drumline_contract import plain

Json = Mapping[str, Any]
_NOTHING: Final = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """One job of a sweep.

    Attributes:
        name: name of the job.
        parameters: `lr=3e-4 seed=1`.
        phase: phase of the job.
        reason: reason of the phase.
        step: finished steps; None: not known.
        loss: as reported; empty: not known.
    """

    name: str
    parameters: str
    phase: str
    reason: str
    step: int | None
    loss: str

    @property
    def order(self) -> tuple[float, str]:
        """The lowest loss first. A loss that is unknown or not finite is last."""
        # The loss is text, and it may be `nan`.
        try:
            loss = float(self.loss)
        except ValueError:
            loss = inf
        return (loss if isfinite(loss) else inf, self.name)


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Return the table of a sweep, or the names of all sweeps of the namespace.

    Raises:
        CommandError: the sweep does not exist, or the cluster refuses.
    """
    credentials = chosen_credentials(chosen, environment)
    namespace = chosen.namespace or credentials.namespace
    # A label selects the jobs, so no other job is read.
    selector = f"{LABEL_SWEEP}={chosen.sweep}" if chosen.sweep else LABEL_SWEEP

    async def read() -> list[bytes]:
        async with cluster_client(credentials) as client:
            return await reads.list_all(
                client, TRAINING_JOBS, namespace=namespace, label_selector=selector
            )

    try:
        jobs = [reads.document(raw) for raw in asyncio.run(read())]
    except errors.KubeError as error:
        raise not_answered(error, what=f"trainingjobs of namespace {namespace}") from None
    # Without a name, only the sweeps are listed.
    if chosen.sweep is None:
        return Output(text=_names(jobs, namespace=namespace))
    if not jobs:
        raise NotAnswered(
            f"no sweep {chosen.sweep!r} in namespace {namespace!r}; drumline sweep lists them"
        )
    rows = sweep_jobs(jobs)
    if chosen.output == "name":
        return Output(text="".join(f"trainingjob.{GROUP}/{row.name}\n" for row in rows))
    if chosen.output == "json":
        fields = ("name", "parameters", "phase", "reason", "step", "loss")
        document = [{name: getattr(row, name) for name in fields} for row in rows]
        return Output(text=json.dumps(document, indent=2) + "\n")
    return Output(text=table(rows))


def sweep_jobs(jobs: Sequence[Json]) -> list[SweepJob]:
    """Return the jobs of a sweep as the API server prints them, the lowest loss first."""
    rows: list[SweepJob] = []
    for job in jobs:
        # A new job has no status yet.
        metadata, status = cast("Json", job["metadata"]), cast("Json", job.get("status") or {})
        annotations = cast("Json", metadata.get("annotations") or {})
        step = status.get("step")
        rows.append(
            SweepJob(
                name=plain(str(metadata["name"])),
                parameters=plain(str(annotations.get(PARAMETERS, ""))),
                phase=plain(str(status.get("phase") or "Pending")),
                reason=plain(str(status.get("reason") or "")),
                step=step if isinstance(step, int) else None,
                loss=plain(str(status.get("loss") or "")),
            )
        )
    return sorted(rows, key=lambda row: row.order)


def table(rows: Sequence[SweepJob]) -> str:
    """Return a column for each parameter, and what each job has reached."""
    # Parameters are text for people. Pairs without `=` are skipped.
    parted = [
        dict(pair.split("=", 1) for pair in row.parameters.split() if "=" in pair) for row in rows
    ]
    # Jobs may have different parameters, so the columns are their union.
    names = list(dict.fromkeys(name for each in parted for name in each))
    heads = ("JOB", *(name.upper() for name in names), "LOSS", "STEP", "PHASE", "REASON")
    cells = [
        (
            row.name,
            *(values.get(name, _NOTHING) for name in names),
            row.loss or _NOTHING,
            _NOTHING if row.step is None else str(row.step),
            row.phase,
            row.reason,
        )
        for row, values in zip(rows, parted, strict=True)
    ]
    return "".join(f"{line}\n" for line in columns([heads, *cells], left=range(len(heads))))


def _names(jobs: Sequence[Json], *, namespace: str) -> str:
    counts: dict[str, int] = {}
    for job in jobs:
        name = str(job["metadata"]["labels"][LABEL_SWEEP])
        counts[name] = counts.get(name, 0) + 1
    if not counts:
        return f"no sweeps in namespace {plain(namespace)}\n"
    rows = [("SWEEP", "JOBS"), *((plain(name), str(count)) for name, count in counts.items())]
    return "".join(f"{line}\n" for line in columns(rows, left=(0,)))
