"""The grammar of `drumline run`, and of the commands for a job that is there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drumline_cli import options
from drumline_cli.options import add_cluster

RUN_DESCRIPTION: Final = """\
Run a command on GPUs with the code of a folder: pack the files that git would keep, create a
TrainingJob, say why it waits and until when, then follow the logs of all its pods. Ctrl-C lets the
job go on. The command's ranks are started, and after a failure started again, by Drumline's agent:
python once for each GPU, as torchrun does; torchrun, accelerate and other launchers once a pod.
"""
RUN_EXAMPLES: Final = """\
examples:
  drumline run -N2 -G8 --image pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime -- python train.py
  drumline run -G8 -q research --claim corpus=/data -- torchrun train.py --data /data
  drumline run -G8 --sweep lr=1e-4,3e-4 --max-parallel 1 -- python train.py --lr {lr}
  drumline run -N2 -G8 --dry-run -- python train.py > job.yaml

DRUMLINE_IMAGE and DRUMLINE_QUEUE are the defaults of --image and --queue. A file .drumlineignore
names files that git keeps and the job does not need, in the form of a .gitignore.
"""
CLONE_DESCRIPTION: Final = """\
Create a job with the spec of another one, and with the same code, but for what is given here.
"""
CLONE_EXAMPLES: Final = """\
examples:
  drumline clone train-kqwz -- python train.py --lr 1e-4
  drumline clone train-kqwz --set nodes=4 --set template.image=registry.example.com/train:2
"""
CONVERT_DESCRIPTION: Final = """\
Print the TrainingJob that does what a job of another system did. On standard error stands what was
carried over, what was left out and why, and what to look at: no field is dropped silently. No
cluster is asked.
"""
CONVERT_EXAMPLES: Final = """\
examples:
  drumline convert pytorchjob.yaml -q research > job.yaml
  drumline convert train.sbatch --image registry.example.com/team/train:1 | kubectl apply -f -
  kubectl get jobset llama -o yaml | drumline convert -
"""
LOGS_DESCRIPTION: Final = """\
Print what all pods of a job have written, by time, each line with the index of its pod. Pods that
were replaced are gone with their logs: --generation reads their last lines from the archive.
"""

SHELL_DESCRIPTION: Final = """\
A shell in the first running pod of a job, or in that of a rank; or one command, behind `--`.
Without a job: a new one of one pod with GPUs, whose command is the shell. That one goes on when
the connection is lost; its name leads back to its terminal. It ends, and gives its GPUs back, by
`exit` or by --delete. When its prompt has had no input for --idle seconds it is suspended, and its
name queues it again: for a new shell, in the same claims. What is to stay is on a claim. By
kubectl, whose rights to exec, and to attach, it needs.
"""
CP_DESCRIPTION: Final = """\
Copy a file or a folder between here and a running pod of a job: one side is JOB:PATH. By kubectl;
the image needs tar.
"""
FORWARD_DESCRIPTION: Final = """\
Ports of a running pod of a job on this machine's loopback, until Ctrl-C. By kubectl.
"""
INSIDE_EXAMPLES: Final = """\
examples:
  drumline shell -q research -G1 --image pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime
  drumline shell shell-kqwz
  drumline shell train-kqwz
  drumline shell train-kqwz --rank 9 -- nvidia-smi
  drumline cp train-kqwz:/tmp/trace.json .
  drumline port-forward train-kqwz 6006
"""


IDLE_SECONDS: Final = 3600
"""Of a shell at its prompt."""


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What stands before the first `--`, and the command behind it."""
    given = list(arguments)
    if "--" not in given:
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def add_run(run: argparse.ArgumentParser) -> None:
    """Every option of `run`; the command behind `--` is split off before."""
    run.add_argument("-N", "--nodes", type=int, default=1, metavar="N", help="pods; default: 1")
    run.add_argument("-G", "--gpus", type=int, default=1, metavar="N", help="of each pod; 1")
    run.add_argument("-q", "--queue", help="TrainingQueue; default: the cluster's only one")
    run.add_argument("--image", help="with Python and the libraries, not with the code")
    run.add_argument("--name", help="of the job; default: the script's, and four random letters")
    run.add_argument(
        "--launch",
        choices=("PerGpu", "PerPod"),
        help="how often the command is started; default: by its name, see above",
    )
    run.add_argument(
        "--folder", type=Path, default=Path(), metavar="FOLDER", help="with the code; default: ."
    )
    _add_code(run)
    run.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="packages that the image lacks: pip installs them in each pod before its ranks start",
    )
    run.add_argument(
        "--preload",
        default="",
        metavar="torch,transformers",
        help="modules that a process beside each rank imports, for a start without them",
    )
    run.add_argument(
        "-e", "--env", action="append", default=[], metavar="NAME=VALUE", help="may be repeated"
    )
    run.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=/FOLDER",
        help="a PersistentVolumeClaim of the namespace and where it appears; may be repeated",
    )
    run.add_argument(
        "--resources",
        default="",
        metavar="cpu=8,memory=64Gi",
        help="of each pod besides its GPUs",
    )
    run.add_argument(
        "--hold",
        type=hold_seconds,
        default=0,
        metavar="SECONDS",
        help="keep the pods for so long where the script fails for good (drumline shell)",
    )
    run.add_argument("--pool", help="GpuPool; default: any in which the queue has quota")
    run.add_argument("--priority", metavar="CLASS", help="PriorityClass")
    _add_chain(run)
    run.add_argument("--dry-run", action="store_true", help="print the objects, change nothing")
    run.add_argument("-d", "--detach", action="store_true", help="create the job and return")
    add_cluster(run)


def _add_code(run: argparse.ArgumentParser) -> None:
    """Where the code is, if the folder is not packed into ConfigMaps."""
    run.add_argument("--no-code", action="store_true", help="the image has the code")
    run.add_argument(
        "--code-from",
        metavar="PLACE",
        help="instead of ConfigMaps: claim:NAME[/FOLDER]; git, the commit of the folder, from its"
        " origin; git:ADDRESS@COMMIT; or s3://BUCKET[/PREFIX], which gets the packed folder",
    )
    run.add_argument(
        "--code-secret",
        metavar="NAME",
        help="with s3: Secret of the namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
        " for the pods; default: the job's variables, else none",
    )
    run.add_argument(
        "--git-image", metavar="IMAGE", help="with git, to fetch the commit; default: the job's"
    )


HOLD_DESCRIPTION: Final = (
    "Where the script has failed and cannot be started again in its pods, these stay for so many"
    " seconds before they end, with their GPUs (spec.recovery.holdSeconds). It counts from the"
    " job's next start on; drumline run --hold gives it from the first."
)
HOLD_SECONDS: Final = 1800


def add_hold(hold: argparse.ArgumentParser) -> None:
    """A job, and for how long."""
    add_job(hold)
    hold.add_argument(
        "--seconds",
        type=hold_seconds,
        default=HOLD_SECONDS,
        metavar="N",
        help=f"1 to 86400; 0 ends it; default: {HOLD_SECONDS}",
    )


def hold_seconds(text: str) -> int:
    """A number of seconds that pods may be held; 0: they are not.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) > 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds up to 86400")
    return int(text)


def _add_chain(run: argparse.ArgumentParser) -> None:
    """Of jobs that belong together."""
    run.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="JOB[:Finished]",
        help="start once this job has succeeded, or has ended; may be repeated",
    )
    run.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="one job for each value, which replaces {NAME} in the command and in the values of"
        " --env; repeated: for each combination",
    )
    run.add_argument(
        "--max-parallel", type=int, metavar="N", help="of a sweep so many jobs at a time; all"
    )


def add_convert(convert: argparse.ArgumentParser) -> None:
    """Every option of `convert`."""
    convert.add_argument(
        "file", nargs="+", metavar="FILE", help="YAML, or an sbatch script; - is standard input"
    )
    convert.add_argument("-q", "--queue", help="TrainingQueue; default: what the input says")
    convert.add_argument("--image", help="where the input names none, as in an sbatch script")
    convert.add_argument(
        "--quiet", action="store_true", help="do not list what was carried over, only the rest"
    )


def add_logs(logs: argparse.ArgumentParser) -> None:
    """Every option of `logs`."""
    options.add_job(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="until the job ends")
    logs.add_argument("--rank", type=int, metavar="R", help="only lines of this rank")
    logs.add_argument(
        "--around",
        metavar="incident",
        help="only lines around the newest incident, one by its number as `drumline report` shows"
        " it (3.0), or a time",
    )
    logs.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        metavar="N",
        help="so many before the fault and after the first step behind it; default: 30",
    )
    logs.add_argument(
        "--generation",
        type=int,
        metavar="N",
        help="what the archive kept of the pods of an earlier membership of the job",
    )
    add_cluster(logs)


def add_shell(shell: argparse.ArgumentParser) -> None:
    """Every option of `shell`; a command stands behind `--`."""
    shell.add_argument(
        "job", metavar="JOB", nargs="?", help="name of the TrainingJob; default: a new one"
    )
    shell.add_argument("--delete", action="store_true", help="delete the job")
    new = shell.add_argument_group("a new job")
    new.add_argument("-q", "--queue", help="TrainingQueue; default: the cluster's only one")
    new.add_argument("-G", "--gpus", type=int, default=1, metavar="N", help="default: 1")
    new.add_argument("--image", help="best with bash; default: that of DRUMLINE_IMAGE")
    new.add_argument("--name", help="default: shell and four random letters")
    new.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=/FOLDER",
        help="a PersistentVolumeClaim of the namespace and where it appears, the first as the"
        " folder to begin in; may be repeated",
    )
    new.add_argument(
        "--resources", default="", metavar="cpu=8,memory=64Gi", help="besides its GPUs"
    )
    new.add_argument(
        "--idle",
        type=hold_seconds,
        default=IDLE_SECONDS,
        metavar="SECONDS",
        help="suspend it after so long at its prompt; 0: never; default: 3600",
    )
    new.add_argument("--pool", help="GpuPool; default: any in which the queue has quota")
    new.add_argument("--priority", metavar="CLASS", help="PriorityClass")
    new.add_argument("--dry-run", action="store_true", help="print the job, change nothing")
    _add_inside(shell)


def add_copy(copy: argparse.ArgumentParser) -> None:
    """Every option of `cp`."""
    copy.add_argument("source", metavar="SOURCE", help="JOB:PATH, or a path here")
    copy.add_argument("target", metavar="TARGET", help="a path here, or JOB:PATH")
    _add_inside(copy)


def add_forward(forward: argparse.ArgumentParser) -> None:
    """Every option of `port-forward`."""
    options.add_job(forward)
    forward.add_argument("ports", nargs="+", metavar="[LOCAL:]PORT", help="of the pod")
    _add_inside(forward)


def _add_inside(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--rank", type=int, metavar="R", help="in this rank's pod; default: the first that runs"
    )
    add_cluster(command)


def add_clone(clone: argparse.ArgumentParser) -> None:
    """Every option of `clone`; another command stands behind `--`."""
    options.add_job(clone)
    clone.add_argument("--name", help="of the new job; default: the old one's and four letters")
    clone.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        help="a field below spec, in JSON or as text; null removes it; may be repeated",
    )
    add_cluster(clone)


def add_job(command: argparse.ArgumentParser) -> None:
    """A command whose only argument is the job."""
    options.add_job(command)
    add_cluster(command)
