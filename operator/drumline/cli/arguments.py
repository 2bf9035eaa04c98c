"""The grammar of the command line: every command with its arguments, by argparse alone.

Nothing heavier is imported here, so that `--help` and a mistyped option are answered at once.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any, Final

from drumline.cli import (
    check_arguments,
    doctor_arguments,
    overview_arguments,
    plan_arguments,
    run_arguments,
    simulate_arguments,
)
from drumline.cli.options import add_context, add_namespace, add_output

_Commands = Any
"""What `ArgumentParser.add_subparsers` gives; argparse does not name its type."""

_REPORT_DESCRIPTION: Final = """\
Report what a job is doing now and why, its incidents and how long each stage of a recovery took,
where its GPU-seconds went, which restarts are left, and what to do next.
"""
_REPORT_EXAMPLES: Final = """\
examples:
  drumline report llama -n research
  drumline report llama -n research -o html > llama.html
  kubectl get trainingjob llama -o yaml | drumline report --file -
"""
_DECIDE_DESCRIPTION: Final = """\
Decide as the operator would: which waiting jobs start and where, which are preempted, which wait,
why, and what would help. Reads nodes, pods, queues, pools, priority classes, jobs, workloads that
wait for a queue and devices of nodes, of the cluster or of files; nothing is changed. A job that
was never applied is judged beside the rest.
"""
_DECIDE_EXAMPLES: Final = """\
examples:
  drumline decide
  drumline decide --live -f new-job.yaml
  kubectl get no,ns,pods,gpupools,trainingqueues,priorityclasses,trainingjobs,jobs,resourceslices,\\
    resourceclaims -A -o json > all.json
  drumline decide -f all.json
  drumline decide -f all.json -f new-job.yaml -o wide
  drumline decide -f all.json --policy values.yaml -o json
"""
_REPLAY_DESCRIPTION: Final = """\
Decide a captured cycle again, with this program's scheduler, and compare. The exit code is 0 when
the decisions are the same to the last word, and 1 when they differ: the differences are printed.

The operator writes a capture of its next cycle to /tmp/drumline-capture.json when it gets SIGUSR1:
  kubectl exec -n drumline-system deploy/drumline-operator -- sh -c 'kill -USR1 1'
  kubectl exec -n drumline-system deploy/drumline-operator -- cat /tmp/drumline-capture.json
"""
_UPGRADE_DESCRIPTION: Final = """\
Decide captured cycles of your cluster again, with this version's scheduler, before you install it:
which jobs would start, wait or be preempted otherwise. The exit code is 0 when every job fares the
same, and 1 when one does not, or a rule is broken. Other words for a reason are no difference.
"""
_UPGRADE_EXAMPLES: Final = """\
examples:
  drumline upgrade --check captures/
  drumline upgrade --check monday.json friday.json
Captures: see drumline replay --help.
"""
_RESTORE_DESCRIPTION: Final = """\
Print the manifests that bring saved pools, queues and unfinished jobs to a new cluster: without
status, and with the folder of its checkpoints in each job, which goes on from them. Jobs that had
ended are left out. What became of each object stands on standard error. No cluster is asked.
"""
_RESTORE_EXAMPLES: Final = """\
examples:
  kubectl get gpupools,trainingqueues,trainingjobs,configmaps -A -o yaml > backup.yaml
  drumline restore backup.yaml | kubectl apply -f -
"""
_COMPLETION_DESCRIPTION: Final = """\
Print a script with which a shell completes commands, options and their fixed values.

  bash   source <(drumline completion bash)
  zsh    source <(drumline completion zsh)
  fish   drumline completion fish | source
"""


def parser(program: str) -> argparse.ArgumentParser:
    """The parser of all commands; the chosen command's name is its `command` attribute.

    Args:
        program: how the program was called, for its usage.
    """
    whole = argparse.ArgumentParser(
        prog=program, description="Drumline: training jobs on Kubernetes.", allow_abbrev=False
    )
    commands = whole.add_subparsers(title="commands", dest="command", required=True)
    _add_jobs(commands)
    overview_arguments.add_commands(partial(_add, commands))
    _add_report(commands)
    _add_decide(commands)
    _add_replay(commands)
    _add_upgrade(commands)
    simulate_arguments.add_arguments(
        _add(
            commands,
            "simulate",
            summary="a trace of jobs on a virtual clock, compared with plain queues",
            description=simulate_arguments.DESCRIPTION,
            epilog=simulate_arguments.EXAMPLES,
        )
    )
    _add_doctor(commands)
    _add_restore(commands)
    check_arguments.add_arguments(
        _add(
            commands,
            "check-nodes",
            summary="idle nodes of a pool check themselves and each other",
            description=check_arguments.DESCRIPTION,
            epilog=check_arguments.EXAMPLES,
        )
    )
    _add_completion(commands)
    run_arguments.add_convert(
        _add(
            commands,
            "convert",
            summary="a PyTorchJob, TrainJob, JobSet, Volcano Job or sbatch script as a TrainingJob",
            description=run_arguments.CONVERT_DESCRIPTION,
            epilog=run_arguments.CONVERT_EXAMPLES,
        )
    )
    plan_arguments.add_arguments(
        _add(
            commands,
            "plan",
            summary="the fastest layout of a model on GPUs, with its memory and time",
            description=plan_arguments.DESCRIPTION,
            epilog=plan_arguments.EXAMPLES,
        )
    )
    return whole


def _add(
    commands: _Commands, name: str, *, summary: str, description: str, epilog: str = ""
) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    return command


def _add_jobs(commands: _Commands) -> None:
    run_arguments.add_run(
        _add(
            commands,
            "run",
            summary="run a command on GPUs with the code of this folder",
            description=run_arguments.RUN_DESCRIPTION,
            epilog=run_arguments.RUN_EXAMPLES,
        )
    )
    logs = _add(
        commands,
        "logs",
        summary="what the pods of a job have written",
        description=run_arguments.LOGS_DESCRIPTION,
    )
    run_arguments.add_logs(logs)
    overview_arguments.add_archive(logs)
    _add_inside(commands)
    run_arguments.add_clone(
        _add(
            commands,
            "clone",
            summary="a new job like one that is there, with other settings or another command",
            description=run_arguments.CLONE_DESCRIPTION,
            epilog=run_arguments.CLONE_EXAMPLES,
        )
    )
    hold = "keep the pods of a script that fails for good, to be looked into"
    run_arguments.add_hold(
        _add(commands, "hold", summary=hold, description=run_arguments.HOLD_DESCRIPTION)
    )
    for name, summary in (
        ("stop", "give a job's GPUs back; it keeps its place in the history (spec.suspend)"),
        ("resume", "queue a stopped job again"),
        ("delete", "delete a job, its pods and, if no other job uses it, its code"),
    ):
        run_arguments.add_job(_add(commands, name, summary=summary, description=f"{summary}."))


def _add_inside(commands: _Commands) -> None:
    run_arguments.add_shell(
        _add(
            commands,
            "shell",
            summary="a shell, or a command, in a pod of a job",
            description=run_arguments.SHELL_DESCRIPTION,
            epilog=run_arguments.INSIDE_EXAMPLES,
        )
    )
    run_arguments.add_copy(
        _add(
            commands,
            "cp",
            summary="copy files from and to a pod of a job",
            description=run_arguments.CP_DESCRIPTION,
        )
    )
    run_arguments.add_forward(
        _add(
            commands,
            "port-forward",
            summary="ports of a pod of a job on this machine",
            description=run_arguments.FORWARD_DESCRIPTION,
        )
    )


def _add_report(commands: _Commands) -> None:
    report = _add(
        commands,
        "report",
        summary="what a job is doing, what happened to it, and what to do next",
        description=_REPORT_DESCRIPTION,
        epilog=_REPORT_EXAMPLES,
    )
    report.add_argument("job", nargs="?", metavar="JOB", help="name of the TrainingJob")
    add_namespace(report, "its namespace; default: that of the context")
    add_output(report, "text", "html", "json")
    report.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="read the job, and events, from what `kubectl get -o yaml` printed instead of the"
        " cluster; - is standard input; may be repeated",
    )
    add_context(report)


def _add_decide(commands: _Commands) -> None:
    decide = _add(
        commands,
        "decide",
        summary="what the operator would do now with the jobs of the cluster, or of files",
        description=_DECIDE_DESCRIPTION,
        epilog=_DECIDE_EXAMPLES,
    )
    decide.add_argument(
        "-f",
        "--file",
        action="append",
        metavar="FILE",
        help="objects as `kubectl get -o yaml` or `-o json` prints them, instead of the cluster's;"
        " - is standard input; may be repeated",
    )
    decide.add_argument(
        "--live",
        action="store_true",
        help="the cluster's objects too; one of a file stands for the cluster's of its name",
    )
    decide.add_argument(
        "--manifest",
        metavar="JSON",
        help="one object more, beside the cluster's (without --file) or the files'",
    )
    add_context(decide)
    add_output(decide, "table", "wide", "json")
    decide.add_argument(
        "--policy",
        metavar="FILE",
        help="the scheduling policy: the chart's values, or what is below `scheduling` in them;"
        " the values also say what else the operator was installed with",
    )
    decide.add_argument(
        "--no-forecast",
        action="store_true",
        help="do not work out when waiting jobs will probably start: that takes some hundred times"
        " as long as to decide",
    )


def _add_replay(commands: _Commands) -> None:
    replay = _add(
        commands,
        "replay",
        summary="decide a captured cycle again and compare",
        description=_REPLAY_DESCRIPTION,
    )
    replay.add_argument("capture", metavar="FILE", help="a capture; - is standard input")
    replay.add_argument(
        "-o",
        "--output",
        choices=("text", "table", "wide"),
        default="text",
        help="text: only whether they differ, and in what; table, wide: what was decided now, too",
    )


def _add_upgrade(commands: _Commands) -> None:
    upgrade = _add(
        commands,
        "upgrade",
        summary="what this version would decide otherwise in captured cycles",
        description=_UPGRADE_DESCRIPTION,
        epilog=_UPGRADE_EXAMPLES,
    )
    upgrade.add_argument(
        "--check",
        dest="captures",
        nargs="+",
        required=True,
        metavar="CAPTURE",
        help="captures, or folders with them (*.json)",
    )
    add_output(upgrade, "text", "json")


def _add_doctor(commands: _Commands) -> None:
    doctor_arguments.add_arguments(
        _add(
            commands,
            "doctor",
            summary="what of a cluster would keep jobs from running, and what to do about it",
            description=doctor_arguments.DESCRIPTION,
            epilog=doctor_arguments.EXAMPLES,
        )
    )


def _add_restore(commands: _Commands) -> None:
    restore = _add(
        commands,
        "restore",
        summary="saved pools, queues and unfinished jobs, for a new cluster",
        description=_RESTORE_DESCRIPTION,
        epilog=_RESTORE_EXAMPLES,
    )
    restore.add_argument(
        "file", nargs="+", metavar="FILE", help="what kubectl get -o yaml printed; - is stdin"
    )


def _add_completion(commands: _Commands) -> None:
    completion = _add(
        commands,
        "completion",
        summary="a script with which a shell completes the commands",
        description=_COMPLETION_DESCRIPTION,
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
