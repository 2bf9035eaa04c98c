"""Runs `drumline doctor`: reads the cluster, examines it, says what to do."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping

from drumline.cli.cluster_access import find_credentials
from drumline.cli.doctor import reading, registry, text
from drumline.cli.doctor.json_output import as_json
from drumline.cli.doctor.results import CheckFailed
from drumline.cli.output import Output


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The findings; the exit code is 1 where a check failed.

    Raises:
        BadInput: no kubeconfig is usable.
        NotAnswered: the API server does not answer, or not to these credentials.
    """
    credentials = find_credentials(
        environment, kubeconfig=chosen.kubeconfig, context=chosen.context
    )
    facts = asyncio.run(reading.read(credentials, system_namespace=chosen.system_namespace))
    findings = registry.examine(facts)
    failed = any(isinstance(finding.result, CheckFailed) for finding in findings)
    if chosen.output == "json":
        return Output(text=as_json(findings), exit_code=int(failed))
    colours = sys.stdout.isatty() and "NO_COLOR" not in environment
    return Output(text=text.render(findings, colours=colours), exit_code=int(failed))
