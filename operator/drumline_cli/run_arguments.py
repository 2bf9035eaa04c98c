"""The grammar of `drumline run`, and of the commands for a job that is there."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from drumline_cli import options
from drumline_cli.options import add_cluster, finite_number, whole_number

RUN_DESCRIPTION: Final = """\
Run a command on GPUs with the code of a folder. Packs the files that git would keep, creates a
TrainingJob, shows why it waits and when it is expected to start, and then follows the logs of all
its pods. After Ctrl-C the job continues. Drumline's agent starts the command, and restarts it after
a failure. Python runs once per GPU, as with torchrun. torchrun, accelerate and other launchers run
once per pod.
"""
RUN_EXAMPLES: Final = """\
examples:
  drumline run -N2 -G8 --image pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime -- python train.py
  drumline run -G8 -q research --claim corpus=/data -- torchrun train.py --data /data
  drumline run -G8 --sweep lr=1e-4,3e-4 --max-parallel 1 -- python train.py --lr {lr}
  drumline run -N2 -G8 --dry-run -- python train.py > job.yaml

DRUMLINE_IMAGE and DRUMLINE_QUEUE set the defaults of --image and --queue. List files that git keeps
but the job does not need in a file .drumlineignore, which has the syntax of .gitignore.
"""
CLONE_DESCRIPTION: Final = """\
Create a job with the spec and the code of another job, except for the changes that you give.
"""
CLONE_EXAMPLES: Final = """\
examples:
  drumline clone train-kqwz -- python train.py --lr 1e-4
  drumline clone train-kqwz --set nodes=4 --set template.image=registry.example.com/train:2
"""
CONVERT_DESCRIPTION: Final = """\
Print the TrainingJob that corresponds to a job of another system. Standard error lists the fields
that were carried over, the fields that were left out with the reason, and the fields to check. No
field is dropped silently. The command needs no cluster.
"""
CONVERT_EXAMPLES: Final = """\
examples:
  drumline convert pytorchjob.yaml -q research > job.yaml
  drumline convert train.sbatch --image registry.example.com/team/train:1 | kubectl apply -f -
  kubectl get jobset llama -o yaml | drumline convert -
"""
LOGS_DESCRIPTION: Final = """\
Print the logs of all pods of a job in order of time. Each line starts with the index of its pod.
The logs of replaced pods are deleted with them. Use --generation to read their last lines from the
archive.
"""

SHELL_DESCRIPTION: Final = """\
Open a shell in the first running pod of a job or in the pod of a rank, or run one command there
(after `--`). Without a job, the command creates a job of one pod with GPUs that runs a shell.
That shell continues when the connection is lost. Run `drumline shell NAME` to return to it. `exit`
or --delete ends it and releases its GPUs. It is suspended after its prompt had no input for --idle
seconds. `drumline shell NAME` then queues it again, with a new shell and the same claims. Keep
files on a claim. Uses kubectl and needs permission to exec and attach.
"""
CP_DESCRIPTION: Final = """\
Copy a file or a folder between this machine and a claim, or a running pod of a job. One of the two
paths is claim:NAME/PATH or JOB:PATH. Uses kubectl.

For a claim, the command creates a pod without a GPU that mounts it, and deletes the pod in the end.
Run the command again to continue a copy that was cut off: files that are complete are skipped. The
pod's image must contain python3. For a job, the image must contain `tar`.
"""
CP_EXAMPLES: Final = """\
examples:
  drumline cp data claim:corpus/books --image python:3.12-slim
  drumline cp claim:runs/llama/step-00000500 . --image python:3.12-slim
  drumline cp train-kqwz:/tmp/trace.json .
"""
EXPORT_DESCRIPTION: Final = """\
Write the weights of a job's newest checkpoint as a folder that Hugging Face's transformers loads.
The target is a folder of this machine, or claim:NAME/PATH. The job may have ended. The export runs
in a pod without a GPU, which has the job's image. Uses kubectl.
"""
EXPORT_EXAMPLES: Final = """\
examples:
  drumline export llama exported
  drumline export llama claim:models/llama-tuned --dtype bfloat16
  drumline export llama adapters --adapter --step 500
"""
RETRY_DESCRIPTION: Final = """\
Create a new job with the spec and the code of a failed job. It continues from the checkpoint folder
of the failed job. Without checkpoints it starts from the beginning.
"""
SWEEP_DESCRIPTION: Final = """\
Show the jobs of a sweep with their parameters, the lowest loss first. Without a name, list the
sweeps of the namespace.
"""
FORWARD_DESCRIPTION: Final = """\
Forward ports of a job's running pod to this machine's loopback interface, until Ctrl-C. Uses
kubectl.
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
"""Seconds of a shell at its prompt."""


def split_command(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before the first `--`, and the command after it."""
    given = list(arguments)
    if "--" not in given:
        # argparse would take options of the user's program for its own. Everything after the first
        # `--` belongs to that program, even a further `--`.
        return given, []
    at = given.index("--")
    return given[:at], given[at + 1 :]


def add_run(run: argparse.ArgumentParser) -> None:
    """Add the options of `run`. The command after `--` is split off before."""
    # Size and placement come first, because most calls set only these.
    run.add_argument(
        "-N", "--nodes", type=int, default=1, metavar="N", help="number of pods (default: 1)"
    )
    run.add_argument(
        "-G", "--gpus", type=int, default=1, metavar="N", help="GPUs per pod (default: 1)"
    )
    run.add_argument("-q", "--queue", help="TrainingQueue (default: the cluster's only queue)")
    run.add_argument(
        "--image", help="container image with Python and your libraries; your code is added"
    )
    run.add_argument(
        "--name", help="name of the job (default: the script's name and four random letters)"
    )
    run.add_argument(
        "--launch",
        choices=("PerGpu", "PerPod"),
        help="start the command once per GPU or once per pod (default: depends on the command,"
        " see above)",
    )
    run.add_argument(
        # A relative folder is resolved by the caller, so a user may run this from a subfolder.
        "--folder",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder with the code (default: .)",
    )
    _add_code(run)
    _add_environment(run)
    # Long groups of options have functions of their own, which other commands reuse.
    run.add_argument(
        "--hold",
        type=hold_seconds,
        default=0,
        metavar="SECONDS",
        help="seconds to keep the pods after the script failed permanently (drumline shell)",
    )
    run.add_argument("--pool", help="GpuPool (default: any pool in which the queue has quota)")
    run.add_argument("--priority", metavar="CLASS", help="PriorityClass")
    _add_user(run)
    _add_chain(run)
    run.add_argument("--dry-run", action="store_true", help="print the objects, but create nothing")
    run.add_argument("-d", "--detach", action="store_true", help="create the job and return")
    # Scripts need the name of the job and nothing else. `-d` alone still prints sentences.
    run.add_argument(
        "-o",
        "--output",
        choices=("text", "name"),
        default="text",
        help="name: print only the names of the created jobs, and return (default: text)",
    )
    add_cluster(run)


def _add_environment(run: argparse.ArgumentParser) -> None:
    """Add packages, variables, claims and resources of the pods, and the format of progress."""
    # Repeated options collect into lists. argparse shares a list default, but only copies are
    # changed.
    run.add_argument(
        "--progress",
        action="append",
        default=[],
        metavar="PATTERN",
        help="regular expression with the groups step, loss, totalSteps or tokensPerSecond, such"
        " as 'it (?P<step>\\d+): (?P<loss>\\S+)'; may be repeated (default: known formats)",
    )
    run.add_argument(
        "--requirements",
        type=Path,
        metavar="FILE",
        help="pip requirements that the image lacks; each pod installs them before its ranks start",
    )
    run.add_argument(
        "--preload",
        default="",
        metavar="torch,transformers",
        help="modules that a standby process beside each rank imports in advance, for faster"
        " restarts",
    )
    _add_variables(run)
    run.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=/FOLDER",
        help="PersistentVolumeClaim of the namespace and its mount path; may be repeated",
    )
    # Text in Kubernetes notation. The request parses it, so that its error names the option.
    run.add_argument(
        "--resources",
        default="",
        metavar="cpu=8,memory=64Gi",
        help="resources of each pod besides its GPUs",
    )


def _add_variables(
    command: argparse._ActionsContainer,  # pyright: ignore[reportPrivateUsage] - parser or group
) -> None:
    """Add the options about variables and Secrets."""
    # `run` and `shell` accept the same variables, with the same spelling.
    command.add_argument(
        "-e",
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable; without a value: this shell's value; may be repeated",
    )
    command.add_argument(
        "--secret",
        action="append",
        default=[],
        metavar="NAME[=KEY]",
        help="variable KEY with the value of this key of a Secret; KEY:VARIABLE gives it another"
        " name; without a key: all keys of the Secret; may be repeated",
    )
    command.add_argument(
        "--env-from",
        action="append",
        default=[],
        metavar="KIND/NAME=PREFIX",
        help="all keys of secret/NAME or configmap/NAME as variables that start with PREFIX; may"
        " be repeated",
    )
    # The registry login is a reference. No command reads the content of a Secret.
    command.add_argument(
        "--pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="Secret with the login of the image's registry; may be repeated",
    )


def _add_code(run: argparse.ArgumentParser) -> None:
    """Add the options about the place of the code, if the folder is not packed into ConfigMaps."""
    # The four places of code exclude each other. The request checks this, because argparse
    # groups cannot describe the conflict of a flag with the value of another option.
    run.add_argument(
        "--no-code", action="store_true", help="do not pack code, because the image contains it"
    )
    run.add_argument(
        "--code-from",
        metavar="PLACE",
        help="source of the code instead of ConfigMaps: claim:NAME[/FOLDER]; git (the folder's"
        " commit, from its origin); git:ADDRESS@COMMIT; or s3://BUCKET[/PREFIX], to which"
        " the packed folder is uploaded",
    )
    run.add_argument(
        "--code-secret",
        metavar="NAME",
        help="with s3: Secret of the namespace with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        " for the pods (default: the job's variables, or none)",
    )
    run.add_argument(
        "--git-image",
        metavar="IMAGE",
        help="with git: image that fetches the commit (default: the job's image)",
    )


HOLD_DESCRIPTION: Final = """\
Keep the pods and their GPUs for this number of seconds after a script failed and cannot be
restarted in them (spec.recovery.holdSeconds). It applies from the job's next start. drumline run
--hold applies it from the first start.
"""
HOLD_SECONDS: Final = 1800
AROUND_SECONDS: Final = 30


def add_hold(hold: argparse.ArgumentParser) -> None:
    """Add a job and the number of seconds."""
    add_job(hold)
    hold.add_argument(
        "--seconds",
        type=hold_seconds,
        default=HOLD_SECONDS,
        metavar="N",
        help=f"1 to 86400 seconds; 0 disables it (default: {HOLD_SECONDS})",
    )


def hold_seconds(text: str) -> int:
    """Parse the seconds for which pods are held. 0: they are not.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    # `isdecimal` rejects signs, fractions and exponents, which the CRD's integer would reject too.
    # The CRD allows one day at most.
    if not text.isdecimal() or int(text) > 86_400:
        raise argparse.ArgumentTypeError(f"invalid duration {text!r}: want 0 to 86400 seconds")
    return int(text)


def _add_user(
    parser: argparse._ActionsContainer,  # pyright: ignore[reportPrivateUsage] - parser or group
) -> None:
    text = "user who is charged for the job; some clusters require your own name (default: nobody)"
    parser.add_argument("--user", metavar="NAME", help=text)


def _add_chain(run: argparse.ArgumentParser) -> None:
    """Add the options of jobs that belong together."""
    run.add_argument(
        "--after",
        action="append",
        default=[],
        metavar="JOB[:Finished]",
        help="start after this job has succeeded, or has ended; may be repeated",
    )
    run.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="NAME=VALUE,VALUE",
        help="create one job per value, which replaces {NAME} in the command and in the values"
        " of --env; if repeated, one job per combination",
    )
    run.add_argument(
        "--max-parallel",
        type=int,
        metavar="N",
        help="maximum number of sweep jobs that run at once (default: all)",
    )


def add_convert(convert: argparse.ArgumentParser) -> None:
    """Add the options of `convert`."""
    convert.add_argument(
        "file", nargs="+", metavar="FILE", help="YAML or an sbatch script; - reads standard input"
    )
    convert.add_argument("-q", "--queue", help="TrainingQueue (default: the queue in the input)")
    convert.add_argument(
        "--image", help="container image, if the input names none, as in an sbatch script"
    )
    convert.add_argument(
        "--quiet", action="store_true", help="list only the fields that were not carried over"
    )


def add_logs(logs: argparse.ArgumentParser) -> None:
    """Add the options of `logs`."""
    options.add_job(logs)
    # A rank belongs to one pod. Filtering by rank therefore reads fewer logs from the kubelets.
    logs.add_argument(
        "-f",
        "--follow",
        action="store_true",
        help="follow the logs until the job ends; routine lines of the agent are left out",
    )
    logs.add_argument(
        "--rank", type=whole_number(0, 1_000_000), metavar="R", help="show only lines of this rank"
    )
    logs.add_argument(
        "--around",
        metavar="incident",
        help="show only lines around the newest incident, around an incident by its number in"
        " `drumline report` (3.0), or around a time",
    )
    logs.add_argument(
        "--seconds",
        type=whole_number(0, 86_400),
        metavar="N",
        help="with --around: seconds of logs to show before the fault and after the first step that"
        f" follows it (default: {AROUND_SECONDS})",
    )
    logs.add_argument(
        "--generation",
        # Replaced pods have no logs in the cluster, so this option needs an archive.
        type=whole_number(1, 2**63 - 1),
        metavar="N",
        help="show the archived logs of pods of an earlier membership of the job",
    )
    add_cluster(logs)


def add_shell(shell: argparse.ArgumentParser) -> None:
    """Add the options of `shell`. A command follows `--`."""
    shell.add_argument(
        "job", metavar="JOB", nargs="?", help="name of the TrainingJob (default: create a new job)"
    )
    shell.add_argument("--delete", action="store_true", help="delete the job")
    # These options apply only without JOB. A separate group keeps them apart in `--help`.
    new = shell.add_argument_group("new job")
    new.add_argument("-q", "--queue", help="TrainingQueue (default: the cluster's only queue)")
    new.add_argument(
        "-G", "--gpus", type=int, default=1, metavar="N", help="number of GPUs (default: 1)"
    )
    new.add_argument(
        "--image", help="container image, preferably with bash (default: $DRUMLINE_IMAGE)"
    )
    new.add_argument("--name", help="name of the job (default: shell and four random letters)")
    _add_variables(new)
    new.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=/FOLDER",
        help="PersistentVolumeClaim of the namespace and its mount path; the shell starts in the"
        " first one; may be repeated",
    )
    new.add_argument(
        "--resources",
        default="",
        metavar="cpu=8,memory=64Gi",
        help="resources of the pod besides its GPUs",
    )
    # An idle shell holds GPUs that others wait for, so there is a limit by default.
    new.add_argument(
        "--idle",
        type=hold_seconds,
        default=IDLE_SECONDS,
        metavar="SECONDS",
        help="seconds at its prompt after which the shell is suspended; 0: never (default: 3600)",
    )
    new.add_argument("--pool", help="GpuPool (default: any pool in which the queue has quota)")
    new.add_argument("--priority", metavar="CLASS", help="PriorityClass")
    _add_user(new)
    new.add_argument("--dry-run", action="store_true", help="print the job, but create nothing")
    _add_inside(shell)


def add_copy(copy: argparse.ArgumentParser) -> None:
    """Add the options of `cp`."""
    copy.add_argument("source", metavar="SOURCE", help="claim:NAME/PATH, JOB:PATH, or a local path")
    copy.add_argument("target", metavar="TARGET", help="local path, claim:NAME/PATH, or JOB:PATH")
    _add_claim_pod(copy)
    _add_inside(copy)


def _add_claim_pod(
    command: argparse.ArgumentParser, *, default_image: str = "$DRUMLINE_IMAGE"
) -> None:
    pod = command.add_argument_group("pod that mounts the claim")
    pod.add_argument("--image", help=f"image with python3 (default: {default_image})")
    pod.add_argument(
        "--pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="Secret with the login of the image's registry; may be repeated",
    )
    pod.add_argument(
        # Files must belong to the user of the training pods, or a later job cannot read them.
        "--user",
        type=whole_number(0, 2**31 - 1),
        default=65_532,
        metavar="UID",
        help="UID and group of the pod (default: 65532, the UID of training pods)",
    )
    pod.add_argument("--node", help="node of the pod (default: any)")
    # A cluster autoscaler may need several minutes for a node.
    pod.add_argument(
        "--wait",
        type=finite_number,
        default=600.0,
        metavar="SECONDS",
        help="seconds to wait until the pod runs (default: 600)",
    )


def add_export(export: argparse.ArgumentParser) -> None:
    """Add the options of `export`."""
    options.add_job(export)
    export.add_argument("target", metavar="TARGET", help="local folder, or claim:NAME/PATH")
    export.add_argument(
        "--step",
        type=whole_number(0, 2**63 - 1),
        metavar="N",
        help="checkpoint (default: the newest)",
    )
    export.add_argument(
        "--adapter", action="store_true", help="export the adapters alone, for peft"
    )
    export.add_argument("--average", action="store_true", help="export the average of the weights")
    export.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="data type")
    # The conversion loads the weights into memory, so the limit must exceed the model's size.
    export.add_argument(
        "--memory", default="32Gi", metavar="32Gi", help="memory limit of the pod (default: 32Gi)"
    )
    export.add_argument(
        "--claim",
        action="append",
        default=[],
        metavar="NAME=/FOLDER",
        help="further claim and its mount path, such as the folder of the base model; may be"
        " repeated",
    )
    _add_claim_pod(export, default_image="the job's, or $DRUMLINE_IMAGE")
    add_cluster(export)


def add_retry(retry: argparse.ArgumentParser) -> None:
    """Add the options of `retry`."""
    options.add_job(retry)
    retry.add_argument(
        "--name", help="name of the new job (default: the old name and four letters)"
    )
    _add_name_output(retry)
    add_cluster(retry)


def _add_name_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "-o",
        "--output",
        choices=("text", "name"),
        default="text",
        help="name: print only the name of the new job (default: text)",
    )


def add_sweep(sweep: argparse.ArgumentParser) -> None:
    """Add the options of `sweep`."""
    sweep.add_argument(
        "sweep", nargs="?", metavar="SWEEP", help="name of the sweep (default: list all)"
    )
    options.add_output(sweep, "table", "json", "yaml", "name")
    add_cluster(sweep)


def add_forward(forward: argparse.ArgumentParser) -> None:
    """Add the options of `port-forward`."""
    options.add_job(forward)
    # kubectl accepts the same notation, and this program passes the text to it.
    forward.add_argument(
        "ports", nargs="+", metavar="[LOCAL:]PORT", help="port of the pod, or LOCAL:POD"
    )
    _add_inside(forward)


def _add_inside(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--rank",
        type=whole_number(0, 1_000_000),
        metavar="R",
        help="use the pod of this rank (default: the first running pod)",
    )
    add_cluster(command)


def add_clone(clone: argparse.ArgumentParser) -> None:
    """Add the options of `clone`. A new command follows `--`."""
    options.add_job(clone)
    clone.add_argument(
        "--name", help="name of the new job (default: the old name and four letters)"
    )
    clone.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="PATH=VALUE",
        # A value may be JSON or plain text, so that users need not quote quotes for the shell.
        help="field below spec, as JSON or as text; null removes it; may be repeated",
    )
    _add_name_output(clone)
    add_cluster(clone)


def add_job(command: argparse.ArgumentParser) -> None:
    """Add the job as the only argument."""
    options.add_job(command)
    add_cluster(command)
