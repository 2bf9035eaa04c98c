"""Runs `drumline diff JOB JOB`."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence

from drumline_cli.cluster_access import chosen_credentials
from drumline_cli.columns import columns
from drumline_cli.commands import Output
from drumline_cli.diff.differences import Difference, as_json, differences
from drumline_cli.errors import BadInput
from drumline_cli.report import from_cluster, from_files
from drumline_cli.report.builder import build_report
from drumline_cli.report.job_input import JobInput

_LONGEST = 60


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Return the two jobs beside each other.

    Raises:
        CommandError: one of them cannot be read.
    """
    if chosen.file and (chosen.context or chosen.kubeconfig):
        raise BadInput("--file cannot be combined with --context or --kubeconfig; remove them")
    if "-" in chosen.file:
        raise BadInput("--file - reads both jobs from standard input; name a file instead")
    inputs = [_read(chosen, environment, name) for name in (chosen.left, chosen.right)]
    left, right = ((each, build_report(each)) for each in inputs)
    rows = differences(left, right)
    names = [f"{each.namespace}/{each.name}" for each in inputs]
    if chosen.output == "json":
        return Output(text=as_json(names, rows))
    return Output(text=_as_text(names, rows))


def _read(chosen: argparse.Namespace, environment: Mapping[str, str], text: str) -> JobInput:
    """`JOB` of the chosen namespace, or `NAMESPACE/JOB`."""
    namespace, slash, name = text.rpartition("/")
    place = namespace if slash else chosen.namespace
    if chosen.file:
        return from_files.read(chosen.file, job=name, namespace=place)
    credentials = chosen_credentials(chosen, environment)
    return asyncio.run(from_cluster.read(credentials, job=name, namespace=place))


def _as_text(names: Sequence[str], rows: Sequence[Difference]) -> str:
    asked = [row for row in rows if row.section == "spec"]
    became = [row for row in rows if row.section == "outcome"]
    cells = [
        ("", *names),
        *(_cells(row) for row in asked or [_nothing()]),
        ("", "", ""),
        *(_cells(row) for row in became),
    ]
    return "".join(f"{line}\n" for line in columns(cells))


def _nothing() -> Difference:
    return Difference(section="spec", field="the same spec", left="", right="")


def _cells(row: Difference) -> tuple[str, str, str]:
    return (row.field, _short(row.left), _short(row.right))


def _short(value: str | None) -> str:
    if value is None:
        return "-"
    return value if len(value) <= _LONGEST else f"{value[: _LONGEST - 1]}…"
