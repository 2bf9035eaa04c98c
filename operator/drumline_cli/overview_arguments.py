"""The grammar of the commands that show the cluster and the archive: `list` to `history`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from drumline_cli.options import (
    CommandGrammar,
    add_context,
    add_identity,
    add_namespace,
    add_output,
    whole_number,
)

ARCHIVE_VARIABLE: Final = "DRUMLINE_ARCHIVE"
GROUPS: Final = ("queue", "user", "namespace", "phase", "job")


@dataclass(frozen=True, slots=True, kw_only=True)
class OverviewCommand:
    """A command that shows rows of the cluster."""

    summary: str
    description: str


# Keys are command names. A command here prints rows, so all share the output options.
ROWS: Final[Mapping[str, OverviewCommand]] = {
    "list": OverviewCommand(
        summary="list the jobs of a namespace: running, pending with their positions, and ended",
        description="List jobs: jobs that hold GPUs, pending jobs with their position and"
        " expected start, and jobs that have ended.",
    ),
    "queue": OverviewCommand(
        summary="show queues, their pending jobs, and when each is expected to start",
        description="Show queues with their quota and usage, and their pending jobs in the"
        " operator's order. STARTS is the operator's forecast. The start is as"
        " likely before as after the first time. With a probability of 90 percent it"
        " is before the second time. Pods, Jobs and JobSets that wait are listed"
        " with the jobs.",
    ),
    "why": OverviewCommand(
        summary="explain why a job waits, which jobs are before it, and who holds the GPUs it"
        " needs",
        description="Explain the state of one job: the reason with figures, its position and the"
        " jobs before it, its queue's quota, who holds the GPUs and until when, and"
        " what to do. For a pod, a Job or a JobSet, also show which queue pays for"
        " it.",
    ),
    "nodes": OverviewCommand(
        summary="list the nodes of the pools: their jobs, their reservations, and unhealthy nodes",
        description="List the nodes of all pools by their place in the network, with the jobs"
        " that hold them and the pending jobs that will get them.",
    ),
    "share": OverviewCommand(
        summary="compare the fair shares of queues: used, due and owed, and the next job",
        description="Compare queues that share a cohort: the share due by weight, the usage"
        " (older usage counts less), the difference that is owed, and the next job.",
    ),
    "usage": OverviewCommand(
        summary="sum GPU-hours by queue and user, and by what they were used for",
        description="Sum what jobs held in a period, and what existing pods hold that belong to"
        " no job (FOREIGN). Deleted jobs are included if you name an archive. For"
        " jobs created before the period, the usage is divided in proportion to"
        " time.",
    ),
    "gantt": OverviewCommand(
        summary="draw jobs over time: when they waited, held GPUs, and are expected to start",
        description="Draw jobs over time: when each job waited, when it held its GPUs, until"
        " when it will hold them, and when a pending job is expected to start.",
    ),
}

UI_DESCRIPTION: Final = """\
Serve a page on this machine's loopback interface until Ctrl-C, and open it in the browser. The page
shows the nodes with the jobs on them, the queues with the reason and expected start of each pending
job, and a report of each job. It reads with the rights of your kubeconfig. Its buttons can do what
you may do. Keep the printed address secret: anyone with it who can reach this machine's loopback
interface acts with your rights.
"""


DIFF_DESCRIPTION: Final = """\
Compare two jobs: the fields of their specs that differ, and their results (steps, loss, speed,
restarts, goodput).
"""


def _add_diff(command: argparse.ArgumentParser) -> None:
    for side in ("left", "right"):
        command.add_argument(side, metavar="JOB", help="NAME, or NAMESPACE/NAME")
    add_namespace(command)
    add_output(command, "text", "json", "yaml")
    _add_source(command)


MCP_DESCRIPTION: Final = """\
Offer the commands that change nothing (list, queue, why, report, nodes, share, usage, diff,
history) as tools to an agent. Uses the Model Context Protocol on standard input and output. Reads
with the rights of your kubeconfig.
"""

_LIVE: Final[Mapping[str, OverviewCommand]] = {
    "top": OverviewCommand(
        summary="show the cluster on one terminal screen, refreshed every two seconds",
        description="Draw pools, queues and jobs: who holds GPUs, the progress of each job, and"
        " which jobs wait and when they start. q quits, p pauses, and the up and"
        " down keys scroll. If the output is not a terminal, one screen is printed.",
    ),
    "ui": OverviewCommand(
        summary="show the cluster as a page in the browser, with your own kubeconfig",
        description=UI_DESCRIPTION,
    ),
    "mcp": OverviewCommand(
        summary="offer the read-only commands as tools to an agent",
        description=MCP_DESCRIPTION,
    ),
}


# `top`, `ui` and `mcp` run until they are stopped, so `--output` does not apply.
def _add_live(command: argparse.ArgumentParser, name: str) -> None:
    # A screen can show files too. A page and tools always read the live cluster.
    if name == "top":
        command.add_argument("-q", "--queue", help="show only this queue and its jobs")
        command.add_argument("--once", action="store_true", help="print one screen and exit")
        command.add_argument(
            "--interval",
            type=_interval,
            default=2.0,
            metavar="SECONDS",
            help="seconds between refreshes (default: 2)",
        )
        _add_source(command)
        return
    if name == "ui":
        _add_page(command)
    add_context(command)


def _add_page(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--port",
        type=whole_number(0, 65_535),
        # Port 0 lets the kernel choose, so several pages can run on one machine.
        default=0,
        metavar="N",
        help="port on the loopback interface (default: a free port)",
    )
    command.add_argument(
        "--no-browser", action="store_true", help="print the address, but open no browser"
    )
    command.add_argument(
        "--policy",
        metavar="FILE",
        help="scheduling policy for what-if questions: the chart's values (default: the default"
        " policy)",
    )
    add_archive(command)


def _interval(text: str) -> float:
    """Parse the seconds between two reads: 1 to 3600, to spare the API server."""
    # NaN and text fall into the same message: both fail the comparison below.
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1.0 <= seconds <= 3600.0:
        raise argparse.ArgumentTypeError(f"{text}: must be 1 to 3600 seconds")
    return seconds


def _add_arguments(command: argparse.ArgumentParser, name: str) -> None:
    """Add the options of one command of `ROWS`."""
    # Options of one command each come first, and shared options last.
    if name == "why":
        command.add_argument(
            "job",
            metavar="JOB|TYPE/NAME",
            help="name of the TrainingJob, or another workload that waits for a queue, such as"
            " pod/NAME, job/NAME or jobset/NAME",
        )
    if name == "queue":
        command.add_argument(
            "queue", nargs="?", metavar="QUEUE", help="show only this queue (default: all)"
        )
    if name == "nodes":
        command.add_argument("--pool", metavar="POOL", help="show only the nodes of this GpuPool")
    if name == "usage":
        command.add_argument(
            "--since",
            metavar="30d",
            help="start of the period: a duration (90m, 12h, 30d) or a day (default: all)",
        )
        # The archive extends the period beyond the deletion of jobs.
        command.add_argument(
            "--by",
            default="queue",
            metavar="GROUPS",
            help=f"group by {','.join(GROUPS)} (default: queue)",
        )
        add_archive(command)
    if name == "gantt":
        command.add_argument(
            "--since",
            default="12h",
            metavar="12h",
            help="start of the chart: a duration or a day (default: 12h)",
        )
        command.add_argument(
            "--ahead", default="12h", metavar="12h", help="duration into the future (default: 12h)"
        )
        command.add_argument(
            "--save", type=Path, metavar="FILE", help="write a picture (.png) or a page (.html)"
        )
    # A queue, a node and a share have no namespace.
    if name in {"list", "why", "gantt"}:
        add_namespace(command)
    if name in {"list", "gantt"}:
        command.add_argument(
            "-A", "--all-namespaces", action="store_true", help="namespace of the jobs"
        )
        command.add_argument("-q", "--queue", help="show only jobs of this queue")
    # `-o name` feeds kubectl, so it exists only for rows that are objects.
    names = ("name",) if name in {"list", "queue", "nodes"} else ()
    add_output(command, "table", "json", "yaml", *names)
    _add_source(command)


def _add_source(command: argparse.ArgumentParser) -> None:
    """Add the options about the source of the objects."""
    command.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="read the output of `kubectl get -A -o json` instead of the cluster; - reads"
        " standard input; may be repeated",
    )
    add_context(command)


HISTORY_DESCRIPTION: Final = """\
List the jobs that have ended, from the archive. This includes jobs whose object, pods or namespace
were deleted. With JOB, show the report of the last job of this name. The command needs no cluster.
It reads the archive with your own rights, so it refuses to act as somebody else (--as).
"""
HISTORY_EXAMPLES: Final = """\
examples:
  export DRUMLINE_ARCHIVE=s3://training-archive/production
  drumline history --since 7d --queue research
  drumline history llama -n research
  kubectl exec -n drumline-system deploy/drumline-archiver -- python3 -m drumline history
"""


def _add_history(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "job", nargs="?", metavar="JOB", help="show the report of the job with this name"
    )
    # Without -n, history covers all namespaces. The archive has no namespace of a context.
    add_namespace(command, "show only jobs of this namespace")
    command.add_argument("-q", "--queue", help="show only jobs of this queue")
    command.add_argument("-u", "--user", help="show only jobs of this user (spec.user)")
    command.add_argument(
        "--since",
        metavar="30d",
        help="start of the period: a duration (90m, 12h, 30d) or a day (default: all)",
    )
    command.add_argument(
        "--limit", type=whole_number(1, 1_000_000), metavar="N", help="show only the last N"
    )
    command.add_argument(
        "--logs",
        action="store_true",
        help="with JOB: show the last lines of its pods, if the archive has them",
    )
    # The variable sets the default, so that operators configure it once per shell.
    add_archive(command)
    add_identity(command)
    command.add_argument(
        "-o",
        "--output",
        choices=("table", "json", "html"),
        default="table",
        help="html: format of the report (default: table)",
    )


def add_archive(command: argparse.ArgumentParser) -> None:
    """Add the option for the archive."""
    command.add_argument(
        "--archive",
        metavar="URL",
        help="file:///FOLDER, s3://BUCKET/PREFIX, gs:// or az:// (default: $DRUMLINE_ARCHIVE)",
    )


EXPORT_DESCRIPTION: Final = """\
Write the jobs of a cluster as a trace for `drumline simulate`. The trace contains each job's
submission time, GPUs, queue, user, priority and run time at full size. Jobs that have not run yet
and deleted jobs are left out. For a running job, the trace contains the expected run time. Without
a forecast, it contains the run time so far.
"""
EXPORT_EXAMPLES: Final = """\
examples:
  drumline export-trace trace.csv --anonymous
  drumline simulate cluster.yaml trace.csv
"""


def _add_export_trace(command: argparse.ArgumentParser) -> None:
    command.add_argument("trace", metavar="FILE", type=Path, help="CSV file to write")
    command.add_argument(
        "--anonymous",
        action="store_true",
        help="replace the names of jobs, users and queues by numbers, so that you can share the"
        " trace",
    )
    _add_source(command)


# `arguments` adds these to its own commands. The help lists all of them by groups.
COMMANDS: Final = (
    *(
        CommandGrammar(name, each.summary, each.description, partial(_add_arguments, name=name))
        for name, each in ROWS.items()
    ),
    CommandGrammar(
        "diff",
        "compare two jobs: their specs and their results",
        DIFF_DESCRIPTION,
        _add_diff,
    ),
    CommandGrammar(
        "history",
        "list the jobs that have ended, from the archive, or show the report of one",
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
        "export the cluster's jobs as a trace for simulate",
        EXPORT_DESCRIPTION,
        _add_export_trace,
        EXPORT_EXAMPLES,
    ),
)
