"""Runs `drumline doctor`: reads the cluster, examines it, says what to do."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping
from dataclasses import replace

from drumline.cli.cluster_access import find_credentials
from drumline.cli.doctor import probing, reading, registry, text
from drumline.cli.doctor.facts import ClusterFacts, OperatorFact
from drumline.cli.doctor.json_output import as_json
from drumline.cli.doctor.results import CheckFailed
from drumline.cli.errors import BadInput
from drumline.cli.output import Output
from drumline.kube.credentials import Credentials
from drumline.settings import Settings


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The findings; the exit code is 1 where a check failed.

    Raises:
        BadInput: no kubeconfig is usable.
        NotAnswered: the API server does not answer, or not to these credentials.
    """
    credentials = find_credentials(
        environment, kubeconfig=chosen.kubeconfig, context=chosen.context
    )
    facts = asyncio.run(_facts(credentials, chosen))
    findings = registry.examine(facts)
    failed = any(isinstance(finding.result, CheckFailed) for finding in findings)
    if chosen.output == "json":
        return Output(text=as_json(findings), exit_code=int(failed))
    colours = sys.stdout.isatty() and "NO_COLOR" not in environment
    return Output(text=text.render(findings, colours=colours), exit_code=int(failed))


async def _facts(credentials: Credentials, chosen: argparse.Namespace) -> ClusterFacts:
    facts = await reading.read(credentials, system_namespace=chosen.system_namespace)
    if not chosen.probe:
        return facts
    installed = facts.operator if isinstance(facts.operator, OperatorFact) else None
    image = chosen.image or (installed.trainer_image if installed else "")
    if not image:
        raise BadInput(
            "--probe takes the trainer's image from the operator, which is not installed in"
            f" {chosen.system_namespace} or may not be read there: name one with --image"
        )
    probes = await probing.probe(
        credentials,
        facts,
        namespace=chosen.namespace or credentials.namespace,
        image=image,
        seconds=chosen.seconds,
        user=installed.training_user if installed else Settings().training_user,
        pull_secrets=tuple(chosen.pull_secret),
    )
    return replace(facts, probes=probes)
