"""The grammar of the commands that show the cluster and the archive: `list` to `history`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from drumline_cli.options import CommandGrammar, add_context, add_namespace, add_output

ARCHIVE_VARIABLE: Final = "DRUMLINE_ARCHIVE"
GROUPS: Final = ("queue", "user", "namespace", "phase", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCommand:
    """A command that shows rows of the cluster."""

    summary: str
    description: str


ROWS: Final[Mapping[str, OverviewCommand]] = {
    "list": OverviewCommand(
        summary="the jobs of a namespace: who runs, who waits at which place, what has ended",
        description="List jobs: those that hold GPUs, those that wait with their place in line and"
        " when they will probably start, and those that have ended.",
    ),
    "queue": OverviewCommand(
        summary="who waits in a queue, for what, and until when",
        description="Show queues with what they may hold and hold, and the jobs that wait in them"
        " in the operator's order. STARTS is the operator's forecast: half of the futures that it"
        " looked at are before the first time, nine in ten before the second. Pods, Jobs and"
        " JobSets that wait stand among them.",
    ),
    "why": OverviewCommand(
        summary="why a job waits, who is before it, who holds what it needs",
        description="Explain where one job is: the reason with figures, its place in line and the"
        " jobs before it, its queue's quota, who holds the GPUs and until when, what to do. Of a"
        " pod, a Job or a JobSet also which queue it is charged to.",
    ),
    "nodes": OverviewCommand(
        summary="the nodes of the pools: who holds them, to whom they are promised, which are sick",
        description="List the nodes of all pools by their place in the network, with the jobs that"
        " hold them and the waiting jobs that will get them.",
    ),
    "share": OverviewCommand(
        summary="what each queue had, is due and is owed, and who is next",
        description="Compare queues that share a cohort: what each is due by its weight, what it"
        " had (older use counts less), what it is owed, and its next job.",
    ),
    "usage": OverviewCommand(
        summary="GPU-hours by queue and user, and what they were held for",
        description="Add up what jobs held in a period, and pods that are no job's and still exist"
        " (FOREIGN). Jobs that were deleted are counted where an"
        " archive is named; of those that were created before the period, a part in proportion to"
        " time.",
    ),
    "gantt": OverviewCommand(
        summary="jobs over time: who waited, who held GPUs, and what is planned",
        description="Draw jobs over time: since when each waits or waited, when it held its GPUs,"
        " until when it will hold them, and between which moments a waiting one is expected to"
        " start.",
    ),
}

UI_DESCRIPTION: Final = """\
Serve a page on this machine's loopback until Ctrl-C, and open it in the browser: the nodes with who
holds them, the queues with why each job waits and until when, each job with its report. It reads
with the rights of your kubeconfig, and its buttons do what you may. The printed address is secret:
whoever has it and reaches this machine's loopback acts as you.
"""


DIFF_DESCRIPTION: Final = """\
Put two jobs beside each other: the fields of their specs that differ, and what they came to (steps,
loss, speed, restarts, goodput).
"""


def _add_diff(command: argparse.ArgumentParser) -> None:
    """Every option of `diff`."""
    for side in ("left", "right"):
        command.add_argument(side, metavar="JOB", help="name, or namespace/name")
    add_namespace(command)
    add_output(command, "text", "json")
    _add_source(command)


MCP_DESCRIPTION: Final = """\
Offer the commands that change nothing (list, queue, why, report, nodes, share, usage, diff,
history) to an agent as tools, by the Model Context Protocol on standard input and output. It reads
with the rights of your kubeconfig, as you would.
"""

_LIVE: Final[Mapping[str, OverviewCommand]] = {
    "top": OverviewCommand(
        summary="the cluster on one screen of the terminal, drawn again every two seconds",
        description="Draw pools, queues and jobs: who holds GPUs and how far each job is, who waits"
        " and when it starts. q quits, p pauses, up and down scroll. Where the output is no"
        " terminal, one screen is printed.",
    ),
    "ui": OverviewCommand(
        summary="the cluster as a page in the browser, with your own kubeconfig",
        description=UI_DESCRIPTION,
    ),
    "mcp": OverviewCommand(
        summary="the read-only commands as tools for an agent",
        description=MCP_DESCRIPTION,
    ),
}


def _add_live(command: argparse.ArgumentParser, name: str) -> None:
    """Every option of one of `_LIVE`."""
    if name == "top":
        command.add_argument("-q", "--queue", help="only this queue and its jobs")
        command.add_argument("--once", action="store_true", help="print one screen and end")
        command.add_argument(
            "--interval", type=_interval, default=2.0, metavar="SECONDS", help="default: 2"
        )
        _add_source(command)
        return
    if name == "ui":
        _add_page(command)
    add_context(command)


def _add_page(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--port", type=int, default=0, metavar="N", help="of loopback; default: a free one"
    )
    command.add_argument("--no-browser", action="store_true", help="only print the address")
    command.add_argument(
        "--policy",
        metavar="FILE",
        help="the scheduling policy that answers what-if: the chart's values; default: defaults",
    )
    add_archive(command)


def _interval(text: str) -> float:
    """Seconds between two reads: one at least, so that nobody floods an API server."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text}: from 1 to 3600 seconds")
    return seconds


def _add_arguments(command: argparse.ArgumentParser, name: str) -> None:
    """Every option of one of `ROWS`."""
    if name == "why":
        command.add_argument(
            "job",
            metavar="JOB|TYPE/NAME",
            help="name of the TrainingJob, or what else waits for a queue, such as pod/NAME,"
            " job/NAME or jobset/NAME",
        )
    if name == "queue":
        command.add_argument("queue", nargs="?", metavar="QUEUE", help="default: all")
    if name == "nodes":
        command.add_argument("--pool", metavar="POOL", help="only the nodes of this GpuPool")
    if name == "usage":
        command.add_argument(
            "--since", metavar="30d", help="a length (90m, 12h, 30d) or a day; default: all"
        )
        command.add_argument(
            "--by", default="queue", metavar="GROUPS", help=f"of {','.join(GROUPS)}; default: queue"
        )
        add_archive(command)
    if name == "gantt":
        command.add_argument(
            "--since", default="12h", metavar="12h", help="a length or a day; default: 12h"
        )
        command.add_argument(
            "--ahead", default="12h", metavar="12h", help="how far into the future; default: 12h"
        )
        command.add_argument(
            "--save", type=Path, metavar="FILE", help="write a picture (.png) or a page (.html)"
        )
    if name in {"list", "why", "gantt"}:
        add_namespace(command)
    if name in {"list", "gantt"}:
        command.add_argument("-A", "--all-namespaces", action="store_true", help="of the cluster")
        command.add_argument("-q", "--queue", help="only jobs of this queue")
    add_output(command, "table", "json")
    _add_source(command)


def _add_source(command: argparse.ArgumentParser) -> None:
    """Where the cluster is read."""
    command.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="read what `kubectl get -A -o json` printed instead of the cluster; - is standard"
        " input; may be repeated",
    )
    add_context(command)


HISTORY_DESCRIPTION: Final = """\
List the jobs that have ended, from the archive: also those whose object, pods or namespace are
gone. With JOB, report what the last job of this name was and came to. No cluster is asked.
"""
HISTORY_EXAMPLES: Final = """\
examples:
  export DRUMLINE_ARCHIVE=s3://training-archive/production
  drumline history --since 7d --queue research
  drumline history llama -n research
  kubectl exec -n drumline-system deploy/drumline-archiver -- python3 -m drumline history
"""


def _add_history(command: argparse.ArgumentParser) -> None:
    """Every option of `history`."""
    command.add_argument("job", nargs="?", metavar="JOB", help="name of a job: its report")
    add_namespace(command, "only jobs of this namespace")
    command.add_argument("-q", "--queue", help="only jobs of this queue")
    command.add_argument("-u", "--user", help="only jobs of this user (spec.user)")
    command.add_argument(
        "--since", metavar="30d", help="a length (90m, 12h, 30d) or a day; default: all"
    )
    command.add_argument("--limit", type=int, metavar="N", help="only the last N")
    command.add_argument(
        "--logs", action="store_true", help="with JOB: the last lines of its pods, where kept"
    )
    add_archive(command)
    command.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "html"),
        default="table",
        help="html: of the report; default: table",
    )


def add_archive(command: argparse.ArgumentParser) -> None:
    """Which archive."""
    command.add_argument(
        "--archive",
        metavar="URL",
        help="file:///FOLDER, s3://BUCKET/PREFIX, gs:// or az://; default: $DRUMLINE_ARCHIVE",
    )


EXPORT_DESCRIPTION: Final = """\
Write the jobs of a cluster as a trace for `drumline simulate`: when each was submitted, its GPUs,
queue, user and priority, and for how long it had to run at its full size. Jobs that have not run
yet, and those that were deleted, are not in it. A job that still runs has the length that it is
expected to have; without a forecast, what it has run so far.
"""
EXPORT_EXAMPLES: Final = """\
examples:
  drumline export-trace trace.csv --anonymous
  drumline simulate cluster.yaml trace.csv
"""


def _add_export_trace(command: argparse.ArgumentParser) -> None:
    """Every option of `export-trace`."""
    command.add_argument("trace", metavar="FILE", type=Path, help="the CSV that is written")
    command.add_argument(
        "--anonymous",
        action="store_true",
        help="number jobs, users and queues instead of naming them, to share the trace",
    )
    _add_source(command)


COMMANDS: Final = (
    *(
        CommandGrammar(name, each.summary, each.description, partial(_add_arguments, name=name))
        for name, each in ROWS.items()
    ),
    CommandGrammar(
        "diff",
        "two jobs beside each other: what they asked for and came to",
        DIFF_DESCRIPTION,
        _add_diff,
    ),
    CommandGrammar(
        "history",
        "the jobs that have ended, from the archive, or the report of one",
        HISTORY_DESCRIPTION,
        _add_history,
        HISTORY_EXAMPLES,
    ),
    *(
        CommandGrammar(name, each.summary, each.description, partial(_add_live, name=name))
        for name, each in _LIVE.items()
    ),
    CommandGrammar(
        "export-trace",
        "the cluster's jobs as a trace for simulate",
        EXPORT_DESCRIPTION,
        _add_export_trace,
        EXPORT_EXAMPLES,
    ),
)
