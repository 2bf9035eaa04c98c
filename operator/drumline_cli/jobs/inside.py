"""`drumline shell`, `cp` and `port-forward`: into a running pod of a job, found by rank.

Terminals, tar and ports are kubectl's business, which whoever works with a cluster has: these
commands find the pod and become kubectl.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final, NoReturn

from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.jobs.follow import CONTAINER, Json, StartedPod
from drumline_cli.jobs.log_selection import index_of_rank

_SHELL: Final = ("sh", "-c", "cd /code 2>/dev/null; exec $(command -v bash || echo sh)")
"""In the folder with the code, if the job brought one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenCluster:
    """Cluster for kubectl, as the user named it."""

    namespace: str
    kubeconfig: Path | None = None
    context: str | None = None
    act_as: str = ""
    act_as_uid: str = ""
    act_as_groups: Sequence[str] = ()

    @classmethod
    def of(cls, chosen: argparse.Namespace, *, namespace: str) -> ChosenCluster:
        """Return the cluster and the identity that the arguments name."""
        return cls(
            namespace=namespace,
            kubeconfig=chosen.kubeconfig,
            context=chosen.context,
            act_as=chosen.act_as,
            act_as_uid=chosen.act_as_uid,
            act_as_groups=chosen.act_as_groups,
        )

    @property
    def options(self) -> list[str]:
        # kubectl gets the same choices, so it reaches the same cluster as this program.
        """Kubectl's own."""
        named = [f"--namespace={self.namespace}"]
        named += [f"--kubeconfig={self.kubeconfig}"] if self.kubeconfig is not None else []
        named += [f"--context={self.context}"] if self.context is not None else []
        named += [f"--as={self.act_as}"] if self.act_as else []
        named += [f"--as-uid={self.act_as_uid}"] if self.act_as_uid else []
        return named + [f"--as-group={group}" for group in self.act_as_groups]


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """Files to copy between a pod and this machine."""

    job: str
    source: str
    target: str
    from_pod: bool


def chosen_pod(job: Json, pods: Sequence[StartedPod], *, rank: int | None) -> StartedPod:
    """Return the running pod of a rank. Without one the first that runs.

    Args:
        job: the TrainingJob as the API server prints it.
        pods: those that have started, by index.
        rank: rank of the job.

    Raises:
        BadInput: the job has no such rank.
        NotAnswered: its pod does not run.
    """
    name = job["metadata"]["name"]
    index = None if rank is None else index_of_rank(job, rank)
    running = [pod for pod in pods if pod.is_running and index in (None, pod.index)]
    if running:
        # While a pod is replaced, the newest pod of the index comes last.
        return running[-1] if index is not None else running[0]
    which = (
        f"{name} has no running pod"
        if rank is None
        else f"rank {rank} of {name} has no running pod"
    )
    words = f"{name} -n {job['metadata']['namespace']}"
    raise NotAnswered(
        f"{which}: drumline report {words} shows what the job is doing, drumline logs {words} shows"
        " the logs of its pods"
    )


def copy_of(source: str, target: str) -> Copy:
    """Return the meaning of `drumline cp SOURCE TARGET`: the side with `JOB:` is in the pod.

    Raises:
        BadInput: both sides are, or none.
    """
    sides = [_job_side(source), _job_side(target)]
    match sides:
        case [(str() as job, str() as path), None]:
            return Copy(job=job, source=path, target=target, from_pod=True)
        case [None, (str() as job, str() as path)]:
            return Copy(job=job, source=source, target=path, from_pod=False)
        case _:
            raise BadInput(
                "want one side of cp as JOB:PATH and the other as a local path: drumline cp"
                " llama:/tmp/trace ."
            )


def shell_arguments(pod: str, command: Sequence[str], *, terminal: bool) -> list[str]:
    """Return the arguments of `kubectl exec`, with a terminal if this process has one.

    Args:
        pod: name of the Pod.
        command: program and arguments.
        terminal: whether this process has a terminal.
    """
    flags = ["-i", "-t"] if terminal else ["-i"]
    return ["exec", *flags, pod, f"--container={CONTAINER}", "--", *(command or _SHELL)]


def attach_arguments(pod: str, *, terminal: bool) -> list[str]:
    """`kubectl attach` to the terminal of the pod's own command."""
    flags = ["-i", "-t"] if terminal else ["-i"]
    return ["attach", *flags, pod, f"--container={CONTAINER}"]


# `kubectl cp` runs tar in the pod.
def copy_arguments(pod: str, copy: Copy) -> list[str]:
    """`kubectl cp`; the image needs tar."""
    source, target = copy.source, copy.target
    if copy.from_pod:
        # kubectl would write a file to the folder itself, which fails.
        if Path(target).is_dir():
            target = str(Path(target) / PurePosixPath(source).name)
        source = f"{pod}:{source}"
    else:
        target = f"{pod}:{target}"
    return ["cp", f"--container={CONTAINER}", source, target]


def forward_arguments(pod: str, ports: Sequence[str]) -> list[str]:
    """`kubectl port-forward`."""
    return ["port-forward", f"pod/{pod}", *ports]


def check_source(cluster: ChosenCluster, pod: str, copy: Copy) -> None:
    """Refuse to copy a path that the pod does not have: `kubectl cp` would end with 0.

    Raises:
        NotAnswered: the path does not exist, or kubectl is not installed.
    """
    asked = ["exec", pod, f"--container={CONTAINER}", "--", "test", "-e", copy.source]
    done = subprocess.run([_kubectl(), *cluster.options, *asked], capture_output=True, check=False)
    # Another failure is kubectl's own or that of an image without `test`. The copy reports it.
    if b"terminated with exit code 1\n" in done.stderr:
        raise NotAnswered(f"{copy.job}:{copy.source} does not exist in pod {pod}")


def become_kubectl(cluster: ChosenCluster, arguments: Sequence[str]) -> NoReturn:
    """Run kubectl in place of this process.

    Raises:
        NotAnswered: it is not installed.
    """
    program = _kubectl()
    # exec replaces the process, so buffered text would be lost.
    sys.stdout.flush()
    verb, *rest = arguments
    # The user's own words, as a list: no shell reads them.
    os.execv(program, ["kubectl", *cluster.options, verb, *rest])  # noqa: S606 - no shell


def _kubectl() -> str:
    program = shutil.which("kubectl")
    if program is None:
        raise NotAnswered(
            "kubectl is not in the PATH; install it, because shell, cp and port-forward use it"
        )
    return program


def _job_side(side: str) -> tuple[str, str] | None:
    """`JOB:PATH`; None for a path here."""
    # A colon in a path with a slash before it is part of the path, as in scp.
    job, colon, path = side.partition(":")
    return (job, path) if colon and path and job and "/" not in job else None
