"""`drumline report JOB`: what a job is doing, what happened to it, and what to do next."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from drumline.cli import command
from drumline.cli.command import Commands, Output
from drumline.cli.errors import BadInput

if TYPE_CHECKING:
    from drumline.cli.report.job_input import Subject
    from drumline.cli.report.model import Story

_DESCRIPTION: Final = """\
Tell what a job is doing now and why, its incidents and what each stage of a recovery took, where
its GPU-seconds went, which restarts are left, and what to do next.
"""
_EXAMPLES: Final = """\
examples:
  drumline report llama -n research
  drumline report llama -n research -o html > llama.html
  kubectl get trainingjob llama -o yaml | drumline report --file -
"""


def add(commands: Commands) -> None:
    """Add the subcommand."""
    report = command.add(
        commands,
        "report",
        run=run,
        summary="what a job is doing, what happened to it, and what to do next",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    report.add_argument("job", nargs="?", metavar="JOB", help="name of the TrainingJob")
    report.add_argument("-n", "--namespace", help="its namespace; default: that of the context")
    report.add_argument(
        "-o", "--output", choices=("text", "html", "json"), default="text", help="default: text"
    )
    report.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="read the job, and events, from what `kubectl get -o yaml` printed instead of the"
        " cluster; - is standard input; may be repeated",
    )
    report.add_argument("--context", help="context of the kubeconfig")
    report.add_argument("--kubeconfig", type=Path, metavar="FILE", help="kubeconfig to use")


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The report, rendered.

    Raises:
        CommandError: the job cannot be read.
    """
    read = _from_files if chosen.file else _from_server
    subject = read(chosen, environment)
    from drumline.cli.report.builder import tell  # noqa: PLC0415 - `--help` needs none of it

    return Output(text=_RENDERERS[chosen.output](tell(subject), environment))


def _from_files(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Subject:
    del environment
    if chosen.context or chosen.kubeconfig:
        raise BadInput("--file reads no cluster: leave out --context and --kubeconfig")
    from drumline.cli.report import from_files as files  # noqa: PLC0415

    return files.read(chosen.file, job=chosen.job, namespace=chosen.namespace)


def _from_server(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Subject:
    if not chosen.job:
        raise BadInput("which job? drumline report JOB [-n NAMESPACE], or --file FILE")
    import asyncio  # noqa: PLC0415

    from drumline.cli.report import from_cluster as server  # noqa: PLC0415

    who = server.credentials(environment, kubeconfig=chosen.kubeconfig, context=chosen.context)
    return asyncio.run(server.read(who, job=chosen.job, namespace=chosen.namespace))


def _text(story: Story, environment: Mapping[str, str]) -> str:
    from drumline.cli.report import text  # noqa: PLC0415

    return text.render(story, colours=sys.stdout.isatty() and "NO_COLOR" not in environment)


def _html(story: Story, environment: Mapping[str, str]) -> str:
    del environment
    from drumline.cli.report import html as page  # noqa: PLC0415

    return page.render(story)


def _json(story: Story, environment: Mapping[str, str]) -> str:
    del environment
    import json  # noqa: PLC0415
    from dataclasses import asdict  # noqa: PLC0415

    return json.dumps({**asdict(story), "goodput": story.goodput}, indent=2) + "\n"


_RENDERERS: Final[Mapping[str, Callable[[Story, Mapping[str, str]], str]]] = {
    "text": _text,
    "html": _html,
    "json": _json,
}
