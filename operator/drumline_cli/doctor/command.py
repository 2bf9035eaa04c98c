"""Runs `drumline doctor`: reads the cluster, examines it, says what to do."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from drumline.kube.credentials import Credentials
from drumline.settings import Settings
from drumline_cli.cluster_access import chosen_credentials
from drumline_cli.commands import Output
from drumline_cli.doctor import probing, reading, registry
from drumline_cli.doctor.facts import ClusterFacts, OperatorFact
from drumline_cli.doctor.json_output import as_json
from drumline_cli.doctor.results import CheckFailed, Finding, Passed, Undecided, Warned
from drumline_cli.doctor_arguments import PROBE_SECONDS
from drumline_cli.errors import BadInput
from drumline_contract import plain

_MARKS: Final = {Passed: "ok", Warned: "warn", CheckFailed: "FAIL", Undecided: "?"}
_COLOURS: Final = {Passed: "32", Warned: "33", CheckFailed: "31", Undecided: "34"}
_MARK_WIDTH: Final = 4


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Return the findings. The exit code is 1 if a check failed.

    Raises:
        BadInput: no kubeconfig is usable, or an option needs --probe.
        NotAnswered: the API server does not answer, or not to these credentials.
    """
    # An option without its partner has no effect, so it is reported.
    given = {
        "--image": chosen.image,
        "--pull-secret": chosen.pull_secret,
        "--seconds": chosen.seconds,
    }
    unused = [name for name, value in given.items() if value and not chosen.probe]
    if unused:
        raise BadInput(f"{unused[0]} needs --probe, because only test pods use it")
    credentials = chosen_credentials(chosen, environment)
    facts = asyncio.run(_facts(credentials, chosen))
    findings = registry.examine(facts)
    failed = any(isinstance(finding.result, CheckFailed) for finding in findings)
    if chosen.output == "json":
        return Output(text=as_json(findings), exit_code=int(failed))
    colours = sys.stdout.isatty() and "NO_COLOR" not in environment
    return Output(text=render(findings, colours=colours), exit_code=int(failed))


async def _facts(credentials: Credentials, chosen: argparse.Namespace) -> ClusterFacts:
    facts = await reading.read(credentials, system_namespace=chosen.system_namespace)
    if not chosen.probe:
        return facts
    installed = facts.operator if isinstance(facts.operator, OperatorFact) else None
    image = chosen.image or (installed.trainer_image if installed else "")
    if not image:
        raise BadInput(
            "--probe reads the trainer's image from the operator, which is not installed in"
            f" {chosen.system_namespace} or not readable; set --image"
        )
    probes = await probing.probe(
        credentials,
        facts,
        namespace=chosen.namespace or credentials.namespace,
        image=image,
        seconds=chosen.seconds or PROBE_SECONDS,
        user=installed.training_user if installed else Settings().training_user,
        pull_secrets=tuple(chosen.pull_secret),
    )
    return replace(facts, probes=probes)


def render(findings: Sequence[Finding], *, colours: bool) -> str:
    """Render all findings, and a last line that counts them.

    Args:
        findings: results of the checks.
        colours: whether the terminal supports colors.
    """
    return "\n".join((*_lines(findings, colours=colours), "", _sum(findings))) + "\n"


def _lines(findings: Iterable[Finding], *, colours: bool) -> Iterator[str]:
    names = [finding.check for finding in findings]
    width = max(map(len, names), default=0)
    for finding in findings:
        kind = type(finding.result)
        mark = _MARKS[kind].ljust(_MARK_WIDTH)
        if colours:
            mark = f"\033[{_COLOURS[kind]}m{mark}\033[0m"
        yield f"{mark}  {finding.check.ljust(width)}  {plain(finding.result.message)}"
        if not isinstance(finding.result, Passed):
            yield f"{' ' * (_MARK_WIDTH + width + 4)}do: {plain(finding.result.fix)}"


def _sum(findings: Iterable[Finding]) -> str:
    counts = Counter(type(finding.result) for finding in findings)
    words = {Passed: "well", Warned: "to check", CheckFailed: "failed", Undecided: "not known"}
    return ", ".join(f"{counts[kind]} {word}" for kind, word in words.items())
