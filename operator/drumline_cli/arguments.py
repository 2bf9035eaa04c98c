"""The grammar of the command line: every command with its arguments, by argparse alone.

Nothing heavier is imported here, so that `--help` and a mistyped option are answered at once.
"""

from __future__ import annotations

import argparse
from textwrap import fill
from typing import Final

from drumline import __version__
from drumline_cli import (
    check_arguments,
    data_arguments,
    doctor_arguments,
    overview_arguments,
    plan_arguments,
    run_arguments,
    simulate_arguments,
)
from drumline_cli.command_line import CommandParser
from drumline_cli.exit_codes import exit_codes_of
from drumline_cli.options import CommandGrammar, add_context, add_namespace, add_output

_REPORT_DESCRIPTION: Final = """\
Show what a job is doing and why, its incidents with the duration of each recovery stage, the use
of its GPU-seconds, the remaining restarts, and what to do next.
"""
_REPORT_EXAMPLES: Final = """\
examples:
  drumline report llama -n research
  drumline report llama -n research -o html > llama.html
  kubectl get trainingjob llama -o yaml | drumline report --file -
"""
_DECIDE_DESCRIPTION: Final = """\
Show the decisions that the operator would make: which pending jobs start and on which nodes, which
jobs are preempted, and which jobs wait, why, and what would help. Reads nodes, pods, queues, pools,
priority classes, jobs, workloads that wait for a queue, and devices of nodes, from the cluster or
from files. Changes nothing. You can add a job that was never applied.
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
Decide a captured cycle again with this program's scheduler, and compare the decisions. The exit
code is 0 if all decisions are identical. Otherwise it is 1, and the differences are printed.

The operator writes a capture of its next cycle to /tmp/drumline-capture.json when it gets SIGUSR1:
  kubectl exec -n drumline-system deploy/drumline-operator -- sh -c 'kill -USR1 1'
  kubectl exec -n drumline-system deploy/drumline-operator \\
    -- python3 -c 'print(open("/tmp/drumline-capture.json").read())'
"""
_UPGRADE_DESCRIPTION: Final = """\
Decide captured cycles of your cluster again with this version's scheduler, before you install it.
Shows the jobs that would start, wait or be preempted differently. The exit code is 0 if the outcome
of every job is the same. It is 1 if an outcome differs or a rule is broken. A different wording of
a reason does not count as a difference.
"""
_UPGRADE_EXAMPLES: Final = """\
examples:
  drumline upgrade --check captures/
  drumline upgrade --check monday.json friday.json
Captures: see drumline replay --help.
"""
_RESTORE_DESCRIPTION: Final = """\
Print the manifests that bring saved pools, queues and unfinished jobs to a new cluster. The
manifests have no status. Each job has the path of its checkpoints and continues from them. Finished
jobs are left out. Standard error lists what happened to each object. The command needs no cluster.
"""
_RESTORE_EXAMPLES: Final = """\
examples:
  kubectl get gpupools,trainingqueues,trainingjobs,configmaps -A -o yaml > backup.yaml
  drumline restore backup.yaml | kubectl apply -f -
"""
_COMPLETION_DESCRIPTION: Final = """\
Print a shell script that completes commands, options and their fixed values.

  bash   source <(drumline completion bash)
  zsh    source <(drumline completion zsh)
  fish   drumline completion fish | source
"""


_EPILOG: Final = """\
-n, --namespace, --context, --kubeconfig and --as may stand before or after commands that take them.

  {program} COMMAND --help   options, examples and exit codes of a command
  {program} --version        version of this program
"""


def _add_report(report: argparse.ArgumentParser) -> None:
    report.add_argument("job", nargs="?", metavar="JOB", help="name of the TrainingJob")
    add_namespace(report, "namespace of the job (default: the context's namespace)")
    add_output(report, "text", "html", "json", "yaml")
    report.add_argument(
        "-f",
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        help="read the job and its events from the output of `kubectl get -o yaml` instead of"
        " the cluster; - reads standard input; may be repeated",
    )
    add_context(report)


def _add_decide(decide: argparse.ArgumentParser) -> None:
    decide.add_argument(
        "-f",
        "--file",
        action="append",
        metavar="FILE",
        help="read the objects from the output of `kubectl get -o yaml` or `-o json` instead of"
        " the cluster; - reads standard input; may be repeated",
    )
    decide.add_argument(
        "--live",
        action="store_true",
        help="also read the cluster's objects; an object from a file replaces the cluster's"
        " object of the same name",
    )
    decide.add_argument(
        "--manifest",
        metavar="JSON",
        help="one more object, in addition to those of the cluster (without --file) or of the"
        " files",
    )
    add_context(decide)
    add_output(decide, "table", "wide", "json", "yaml")
    decide.add_argument(
        "--policy",
        metavar="FILE",
        help="the scheduling policy: the chart's values, or their `scheduling` section; the"
        " whole values also describe the operator's other settings",
    )
    decide.add_argument(
        "--no-forecast",
        action="store_true",
        help="skip the expected start times of pending jobs, which take about a hundred times as"
        " long as the decision",
    )


def _add_replay(replay: argparse.ArgumentParser) -> None:
    replay.add_argument("capture", metavar="FILE", help="a capture; - reads standard input")
    replay.add_argument(
        "-o",
        "--output",
        choices=("text", "table", "wide"),
        default="text",
        help="text: print only the comparison; table, wide: also print the new decisions",
    )


def _add_upgrade(upgrade: argparse.ArgumentParser) -> None:
    upgrade.add_argument(
        "--check",
        dest="captures",
        nargs="+",
        required=True,
        metavar="CAPTURE",
        help="captures, or folders that contain them (*.json)",
    )
    add_output(upgrade, "text", "json")


def _add_restore(restore: argparse.ArgumentParser) -> None:
    restore.add_argument(
        "file",
        nargs="+",
        metavar="FILE",
        help="output of kubectl get -o yaml; - reads standard input",
    )


def _add_completion(completion: argparse.ArgumentParser) -> None:
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))


def _add_logs(logs: argparse.ArgumentParser) -> None:
    run_arguments.add_logs(logs)
    overview_arguments.add_archive(logs)


def _wrapped(text: str) -> str:
    """Return a text whose long lines are wrapped, because argparse keeps lines as they are."""
    lines = (fill(line, _WIDTH) if len(line) > _WIDTH else line for line in text.splitlines())
    return "\n".join(lines)


_WIDTH: Final = 100
# These commands take a job and nothing else, so one table describes them.
_SIMPLE: Final = {
    "stop": "suspend a job: it releases its GPUs and keeps its place in the history (spec.suspend)",
    "resume": "resume a stopped job: it is queued again",
    "delete": "delete a job with its pods, and its code if no other job uses it",
}
# The help lists these commands by the groups of `grammar`, not in this order.
_COMMANDS: Final = (
    CommandGrammar(
        "run",
        "run a command on GPUs with the code of this folder",
        run_arguments.RUN_DESCRIPTION,
        run_arguments.add_run,
        run_arguments.RUN_EXAMPLES,
    ),
    CommandGrammar(
        "logs", "print the logs of a job's pods", run_arguments.LOGS_DESCRIPTION, _add_logs
    ),
    CommandGrammar(
        "shell",
        "open a shell, or run a command, in a pod of a job",
        run_arguments.SHELL_DESCRIPTION,
        run_arguments.add_shell,
        run_arguments.INSIDE_EXAMPLES,
    ),
    CommandGrammar(
        "cp",
        "copy files from or to a claim, or a pod of a job",
        run_arguments.CP_DESCRIPTION,
        run_arguments.add_copy,
        run_arguments.CP_EXAMPLES,
    ),
    CommandGrammar(
        "export",
        "write a job's checkpoint as a folder for Hugging Face's transformers",
        run_arguments.EXPORT_DESCRIPTION,
        run_arguments.add_export,
        run_arguments.EXPORT_EXAMPLES,
    ),
    CommandGrammar(
        "port-forward",
        "forward ports of a job's pod to this machine",
        run_arguments.FORWARD_DESCRIPTION,
        run_arguments.add_forward,
    ),
    CommandGrammar(
        "clone",
        "create a copy of a job with other settings or another command",
        run_arguments.CLONE_DESCRIPTION,
        run_arguments.add_clone,
        run_arguments.CLONE_EXAMPLES,
    ),
    CommandGrammar(
        "retry",
        "start a failed job again, from its checkpoints",
        run_arguments.RETRY_DESCRIPTION,
        run_arguments.add_retry,
    ),
    CommandGrammar(
        "sweep",
        "compare the jobs of a sweep, the lowest loss first",
        run_arguments.SWEEP_DESCRIPTION,
        run_arguments.add_sweep,
    ),
    CommandGrammar(
        "hold",
        "keep the pods of a job's failed script, so that you can inspect them",
        run_arguments.HOLD_DESCRIPTION,
        run_arguments.add_hold,
    ),
    *(
        # The summary is also the description, because there are no options to explain.
        CommandGrammar(name, summary, f"{summary[0].upper()}{summary[1:]}.", run_arguments.add_job)
        for name, summary in _SIMPLE.items()
    ),
    *overview_arguments.COMMANDS,
    CommandGrammar(
        "report",
        "show what a job is doing, what happened to it, and what to do next",
        _REPORT_DESCRIPTION,
        _add_report,
        _REPORT_EXAMPLES,
    ),
    CommandGrammar(
        "decide",
        "show what the operator would decide for the jobs of the cluster, or of files",
        _DECIDE_DESCRIPTION,
        _add_decide,
        _DECIDE_EXAMPLES,
    ),
    CommandGrammar(
        "replay", "decide a captured cycle again and compare", _REPLAY_DESCRIPTION, _add_replay
    ),
    CommandGrammar(
        "upgrade",
        "show what this version would decide differently in captured cycles",
        _UPGRADE_DESCRIPTION,
        _add_upgrade,
        _UPGRADE_EXAMPLES,
    ),
    CommandGrammar(
        "simulate",
        "simulate a trace of jobs, and compare Drumline with plain queues",
        simulate_arguments.DESCRIPTION,
        simulate_arguments.add_arguments,
        simulate_arguments.EXAMPLES,
    ),
    CommandGrammar(
        "doctor",
        "find problems of a cluster that affect jobs, with a fix for each",
        doctor_arguments.DESCRIPTION,
        doctor_arguments.add_arguments,
        doctor_arguments.EXAMPLES,
    ),
    CommandGrammar(
        "restore",
        "print saved pools, queues and unfinished jobs for a new cluster",
        _RESTORE_DESCRIPTION,
        _add_restore,
        _RESTORE_EXAMPLES,
    ),
    CommandGrammar(
        "check-nodes",
        "test the idle nodes of a pool",
        check_arguments.DESCRIPTION,
        check_arguments.add_arguments,
        check_arguments.EXAMPLES,
    ),
    CommandGrammar(
        "completion",
        "print a script for shell completion",
        _COMPLETION_DESCRIPTION,
        _add_completion,
    ),
    CommandGrammar(
        "convert",
        "convert a PyTorchJob, TrainJob, JobSet, Volcano Job or sbatch script to a TrainingJob",
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
        "find the fastest layout of a model on GPUs, with its memory and time",
        plan_arguments.DESCRIPTION,
        plan_arguments.add_arguments,
        plan_arguments.EXAMPLES,
    ),
)


def parser(program: str) -> CommandParser:
    """Return the parser of all commands. The chosen command's name is its `command` attribute.

    Args:
        program: how the program was called, for its usage.
    """
    whole = CommandParser(
        prog=program,
        description="Drumline: training jobs on Kubernetes.",
        epilog=_EPILOG.format(program=program),
        # An abbreviated option would become ambiguous when a later version adds options.
        allow_abbrev=False,
    )
    whole.add_argument("--version", action="version", version=f"drumline {__version__}")
    # `required` makes a call without a command a usage error, with exit code 2.
    commands = whole.add_subparsers(title="commands", dest="command", required=True)
    # Each parser is built even if another command runs. This takes milliseconds.
    for each in _COMMANDS:
        each.add(
            commands.add_parser(
                each.name,
                help=each.summary,
                description=_wrapped(each.description),
                # Exit codes belong to the help of each command, because scripts depend on them.
                epilog="\n".join(filter(None, (each.examples, exit_codes_of(each.name)))),
                # Examples contain line breaks that argparse would reflow.
                formatter_class=argparse.RawDescriptionHelpFormatter,
                allow_abbrev=False,
            )
        )
    return whole
