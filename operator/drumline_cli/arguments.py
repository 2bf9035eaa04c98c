"""The grammar of the command line: every command with its arguments, by argparse alone.

Nothing heavier is imported here, so that `--help` and a mistyped option are answered at once.
"""

from __future__ import annotations

import argparse
from typing import Final

from drumline_cli import (
    check_arguments,
    data_arguments,
    doctor_arguments,
    overview_arguments,
    plan_arguments,
    run_arguments,
    simulate_arguments,
)
from drumline_cli.options import CommandGrammar, add_context, add_namespace, add_output

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


def _add_report(report: argparse.ArgumentParser) -> None:
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


def _add_decide(decide: argparse.ArgumentParser) -> None:
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


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("capture", metavar="FILE", help="a capture; - is standard input")
    replay.add_argument(
        "-o",
        "--output",
        choices=("text", "table", "wide"),
        default="text",
        help="text: only whether they differ, and in what; table, wide: what was decided now, too",
    )


def _add_upgrade(upgrade: argparse.ArgumentParser) -> None:
    upgrade.add_argument(
        "--check",
        dest="captures",
        nargs="+",
        required=True,
        metavar="CAPTURE",
        help="captures, or folders with them (*.json)",
    )
    add_output(upgrade, "text", "json")


def _add_restore(restore: argparse.ArgumentParser) -> None:
    restore.add_argument(
        "file", nargs="+", metavar="FILE", help="what kubectl get -o yaml printed; - is stdin"
    )


def _add_completion(completion: argparse.ArgumentParser) -> None:
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _add_logs(logs: argparse.ArgumentParser) -> None:
    run_arguments.add_logs(logs)
    overview_arguments.add_archive(logs)


_SIMPLE: Final = {
    "stop": "give a job's GPUs back; it keeps its place in the history (spec.suspend)",
    "resume": "queue a stopped job again",
    "delete": "delete a job, its pods and, if no other job uses it, its code",
}
_COMMANDS: Final = (
    CommandGrammar(
        "run",
        "run a command on GPUs with the code of this folder",
        run_arguments.RUN_DESCRIPTION,
        run_arguments.add_run,
        run_arguments.RUN_EXAMPLES,
    ),
    CommandGrammar(
        "logs", "what the pods of a job have written", run_arguments.LOGS_DESCRIPTION, _add_logs
    ),
    CommandGrammar(
        "shell",
        "a shell, or a command, in a pod of a job",
        run_arguments.SHELL_DESCRIPTION,
        run_arguments.add_shell,
        run_arguments.INSIDE_EXAMPLES,
    ),
    CommandGrammar(
        "cp",
        "copy files from and to a pod of a job",
        run_arguments.CP_DESCRIPTION,
        run_arguments.add_copy,
    ),
    CommandGrammar(
        "port-forward",
        "ports of a pod of a job on this machine",
        run_arguments.FORWARD_DESCRIPTION,
        run_arguments.add_forward,
    ),
    CommandGrammar(
        "clone",
        "a new job like one that is there, with other settings or another command",
        run_arguments.CLONE_DESCRIPTION,
        run_arguments.add_clone,
        run_arguments.CLONE_EXAMPLES,
    ),
    CommandGrammar(
        "hold",
        "keep the pods of a script that fails for good, to be looked into",
        run_arguments.HOLD_DESCRIPTION,
        run_arguments.add_hold,
    ),
    *(
        CommandGrammar(name, summary, f"{summary}.", run_arguments.add_job)
        for name, summary in _SIMPLE.items()
    ),
    *overview_arguments.COMMANDS,
    CommandGrammar(
        "report",
        "what a job is doing, what happened to it, and what to do next",
        _REPORT_DESCRIPTION,
        _add_report,
        _REPORT_EXAMPLES,
    ),
    CommandGrammar(
        "decide",
        "what the operator would do now with the jobs of the cluster, or of files",
        _DECIDE_DESCRIPTION,
        _add_decide,
        _DECIDE_EXAMPLES,
    ),
    CommandGrammar(
        "replay", "decide a captured cycle again and compare", _REPLAY_DESCRIPTION, _add_replay
    ),
    CommandGrammar(
        "upgrade",
        "what this version would decide otherwise in captured cycles",
        _UPGRADE_DESCRIPTION,
        _add_upgrade,
        _UPGRADE_EXAMPLES,
    ),
    CommandGrammar(
        "simulate",
        "a trace of jobs on a virtual clock, compared with plain queues",
        simulate_arguments.DESCRIPTION,
        simulate_arguments.add_arguments,
        simulate_arguments.EXAMPLES,
    ),
    CommandGrammar(
        "doctor",
        "what of a cluster would keep jobs from running, and what to do about it",
        doctor_arguments.DESCRIPTION,
        doctor_arguments.add_arguments,
        doctor_arguments.EXAMPLES,
    ),
    CommandGrammar(
        "restore",
        "saved pools, queues and unfinished jobs, for a new cluster",
        _RESTORE_DESCRIPTION,
        _add_restore,
        _RESTORE_EXAMPLES,
    ),
    CommandGrammar(
        "check-nodes",
        "idle nodes of a pool check themselves and each other",
        check_arguments.DESCRIPTION,
        check_arguments.add_arguments,
        check_arguments.EXAMPLES,
    ),
    CommandGrammar(
        "completion",
        "a script with which a shell completes the commands",
        _COMPLETION_DESCRIPTION,
        _add_completion,
    ),
    CommandGrammar(
        "convert",
        "a PyTorchJob, TrainJob, JobSet, Volcano Job or sbatch script as a TrainingJob",
        run_arguments.CONVERT_DESCRIPTION,
        run_arguments.add_convert,
        run_arguments.CONVERT_EXAMPLES,
    ),
    CommandGrammar(
        "data",
        "what a run would make of records: the tokens, and which of them are learned",
        data_arguments.DESCRIPTION,
        data_arguments.add_arguments,
        data_arguments.EXAMPLES,
    ),
    CommandGrammar(
        "plan",
        "the fastest layout of a model on GPUs, with its memory and time",
        plan_arguments.DESCRIPTION,
        plan_arguments.add_arguments,
        plan_arguments.EXAMPLES,
    ),
)


def parser(program: str) -> argparse.ArgumentParser:
    """The parser of all commands; the chosen command's name is its `command` attribute.

    Args:
        program: how the program was called, for its usage.
    """
    whole = argparse.ArgumentParser(
        prog=program, description="Drumline: training jobs on Kubernetes.", allow_abbrev=False
    )
    commands = whole.add_subparsers(title="commands", dest="command", required=True)
    for each in _COMMANDS:
        each.add(
            commands.add_parser(
                each.name,
                help=each.summary,
                description=each.description,
                epilog=each.examples,
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )
    return whole
