"""Runs `drumline report JOB`: read the job, build its report, render it."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping

from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.report import from_files
from drumline_cli.report.builder import build_report
from drumline_cli.report.job_input import JobInput
from drumline_cli.report.rendering import render


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Return the report, rendered.

    Raises:
        CommandError: the job cannot be read.
    """
    job_input = _from_files(chosen) if chosen.file else _from_cluster(chosen, environment)
    report = build_report(job_input)
    return Output(text=render(report, output=chosen.output, environment=environment))


def _from_files(chosen: argparse.Namespace) -> JobInput:
    if chosen.context or chosen.kubeconfig:
        raise BadInput("--file cannot be combined with --context or --kubeconfig; remove them")
    return from_files.read(chosen.file, job=chosen.job, namespace=chosen.namespace)


def _from_cluster(chosen: argparse.Namespace, environment: Mapping[str, str]) -> JobInput:
    if not chosen.job:
        raise BadInput("no job is given; use drumline report JOB [-n NAMESPACE], or --file FILE")
    from drumline_cli.cluster_access import chosen_credentials  # noqa: PLC0415 - see below
    from drumline_cli.report import from_cluster  # noqa: PLC0415 - aiohttp: 0.3 s that --file saves

    credentials = chosen_credentials(chosen, environment)
    return asyncio.run(from_cluster.read(credentials, job=chosen.job, namespace=chosen.namespace))
