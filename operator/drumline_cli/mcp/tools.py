"""The tools: read-only commands of the command line, with checked arguments.

A tool's call becomes a command line, so that an agent sees what its user would, with the same
rights. Values are names or moments by pattern and stand behind `=`: none of them can be an option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

# Names of Kubernetes objects. The length is bounded as on the server.
_NAME: Final = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolArgument:
    """One argument of a tool."""

    name: str
    option: str
    """Option of the command line. Empty: a positional argument."""
    meaning: str
    pattern: str = _NAME
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnlyTool:
    """A command that changes nothing."""

    name: str
    description: str
    command: tuple[str, ...]
    arguments: tuple[ToolArgument, ...] = ()

    def schema(self) -> Json:
        """Return the schema for `tools/list`."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object",
                "properties": {
                    each.name: {
                        "type": "string",
                        "description": each.meaning,
                        "pattern": f"^{each.pattern}$",
                    }
                    for each in self.arguments
                },
                "required": [each.name for each in self.arguments if each.required],
                # No other arguments: an agent must not invent options.
                "additionalProperties": False,
            },
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }

    def command_line(self, given: Mapping[str, Any]) -> list[str]:
        """Return the command line of a call.

        Raises:
            ValueError: an argument is missing, unknown, or not of its form; says which.
        """
        known = {each.name: each for each in self.arguments}
        # A clear error helps an agent to correct its call.
        if unknown := given.keys() - known.keys():
            raise ValueError(f"{self.name} has no argument {min(unknown)!r}")
        options: list[str] = []
        alone: list[str] = []
        for each in self.arguments:
            value = given.get(each.name)
            if value is None:
                if each.required:
                    raise ValueError(f"{self.name} needs the argument {each.name!r}")
                continue
            # The client may ignore the schema, so the pattern is checked here too.
            if not isinstance(value, str) or re.fullmatch(each.pattern, value) is None:
                raise ValueError(f"{each.name} must match {each.pattern}")
            if each.option:
                # The equals sign keeps a value from being read as an option.
                options.append(f"{each.option}={value}")
            else:
                alone.append(value)
        # Options come before positional arguments, so the order of the call does not matter.
        return [*self.command, *options, *alone]


_QUEUE: Final = ToolArgument(name="queue", option="--queue", meaning="only jobs of this queue")
_NAMESPACE: Final = ToolArgument(
    name="namespace",
    option="--namespace",
    meaning="namespace of the job (default: the kubeconfig's namespace)",
)
_WHAT: Final = ToolArgument(
    name="job",
    option="",
    meaning="name of the TrainingJob; for another kind, TYPE/NAME: pod/chat or job/train",
    pattern=rf"([a-z]{{1,20}}/)?{_NAME}",
    required=True,
)
_JOB: Final = ToolArgument(name="job", option="", meaning="name of the TrainingJob", required=True)
_SINCE: Final = ToolArgument(
    name="since",
    option="--since",
    meaning="a duration such as 12h or 30d (default: the whole history)",
    pattern=r"\d{1,6}[mhd]",
)
_AS_JSON: Final = ("-o", "json")

# Read-only commands only. A tool that changes the cluster would need a confirmation.
TOOLS: Final[Sequence[ReadOnlyTool]] = (
    ReadOnlyTool(
        name="list_jobs",
        description="All training jobs that the user may read: jobs that hold GPUs with their"
        " progress, pending jobs with their position and expected start, and ended"
        " jobs.",
        command=("list", "-A", *_AS_JSON),
        arguments=(_QUEUE,),
    ),
    ReadOnlyTool(
        name="show_queues",
        description="Queues with their quota and usage, and their pending jobs in the operator's"
        " order, each with its reason and the range of its expected start.",
        command=("queue", *_AS_JSON),
        arguments=(ToolArgument(name="queue", option="", meaning="only this queue"),),
    ),
    ReadOnlyTool(
        name="why_does_it_wait",
        description="Why one job waits: the reason with figures, the jobs before it, who holds"
        " the GPUs it needs and until when, and what to do about it.",
        command=("why", *_AS_JSON),
        arguments=(_NAMESPACE, _WHAT),
    ),
    ReadOnlyTool(
        name="decide",
        description="A dry run of the operator's next cycle with the current cluster, by the"
        " operator's own code and the default scheduling policy. It returns which"
        " pending jobs start and on which nodes, which jobs are preempted and for"
        " which job, which jobs wait and why, how many nodes an autoscaler is asked"
        " for, and what would let jobs start. If pools have prices, it returns the"
        " cost of nodes, and alternatives for the first pending job (wait, request"
        " less, preempt, buy nodes) with the cost of each. With a manifest, it also"
        " returns the decision for that job, which is not created.",
        command=("decide", "--no-forecast", *_AS_JSON),
        arguments=(
            ToolArgument(
                name="manifest",
                option="--manifest",
                meaning="a TrainingJob as JSON, decided together with the cluster's jobs; it"
                " replaces a job of the same name",
                # The bound protects the command line, which has a maximum length.
                pattern=r"\{[\s\S]{1,100000}\}",
            ),
        ),
    ),
    ReadOnlyTool(
        name="report_job",
        description="What a job is doing and what happened to it: incidents with root cause and"
        " the duration of each recovery stage, goodput, remaining restarts, what to"
        " do next.",
        command=("report", *_AS_JSON),
        arguments=(_NAMESPACE, _JOB),
    ),
    ReadOnlyTool(
        name="list_nodes",
        description="GPU nodes by pool and place in the network: the jobs on them, reservations,"
        " and what keeps pods off them.",
        command=("nodes", *_AS_JSON),
        arguments=(ToolArgument(name="pool", option="--pool", meaning="only this GpuPool"),),
    ),
    ReadOnlyTool(
        name="compare_shares",
        description="For each queue of a cohort: the share due by weight, the usage, and the"
        " difference that is owed.",
        command=("share", *_AS_JSON),
    ),
    ReadOnlyTool(
        name="add_up_usage",
        description="GPU-hours in a period, and what they were used for.",
        command=("usage", *_AS_JSON),
        arguments=(
            _SINCE,
            ToolArgument(
                name="by",
                option="--by",
                meaning="groups, such as queue,user (default: queue)",
                pattern=r"[a-z]{1,20}(,[a-z]{1,20}){0,4}",
            ),
        ),
    ),
    ReadOnlyTool(
        name="compare_jobs",
        description="Compare two jobs: the fields of their specs that differ, and their results.",
        command=("diff", *_AS_JSON),
        arguments=(
            _NAMESPACE,
            ToolArgument(name="left", option="", meaning="name of a job", required=True),
            ToolArgument(name="right", option="", meaning="name of another job", required=True),
        ),
    ),
    ReadOnlyTool(
        name="list_ended_jobs",
        description="Jobs that have ended or were deleted, newest first, from the archive that"
        " DRUMLINE_ARCHIVE names. Includes jobs that the cluster no longer has.",
        # A long archive would exceed the context of a model.
        command=("history", "--limit=500", *_AS_JSON),
        arguments=(
            _QUEUE,
            ToolArgument(
                name="namespace", option="--namespace", meaning="show only jobs of this namespace"
            ),
            _SINCE,
        ),
    ),
    ReadOnlyTool(
        name="report_ended_job",
        description="The report of the last ended job of a name, from the same archive, as it"
        " was when the job ended.",
        command=("history", *_AS_JSON),
        arguments=(
            ToolArgument(name="namespace", option="--namespace", meaning="namespace of the job"),
            _JOB,
        ),
    ),
)
