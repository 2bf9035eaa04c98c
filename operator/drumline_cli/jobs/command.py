"""Runs `drumline logs`, `shell`, `cp`, `port-forward`, `stop`, `resume`, `clone`, `delete`."""

from __future__ import annotations

import argparse
import asyncio
import random
import string
import sys
import time
from collections.abc import Mapping
from typing import Final, NoReturn, cast

from drumline.kube import errors, writes
from drumline.kube.client import KubeClient
from drumline.kube.credentials import Credentials
from drumline.kube.kinds import TRAINING_JOBS
from drumline_api.base import GROUP
from drumline_cli.cluster_access import chosen_credentials, cluster_client, missing_job, refusal
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput, NotAnswered, OutputLost
from drumline_cli.jobs.archived_lines import archived_lines
from drumline_cli.jobs.clone import check_changes, cloned, retried
from drumline_cli.jobs.create_clone import create_clone
from drumline_cli.jobs.follow import Json, follow_job, read_job, started_pods, state_line
from drumline_cli.jobs.inside import (
    ChosenCluster,
    attach_arguments,
    become_kubectl,
    check_source,
    chosen_pod,
    copy_arguments,
    copy_of,
    forward_arguments,
    shell_arguments,
)
from drumline_cli.jobs.log_selection import LogSelection, selection_of
from drumline_cli.jobs.named_job import NamedJob
from drumline_cli.jobs.terminal_pod import has_terminal, resume_idle, wait_for_terminal
from drumline_cli.jobs.written import written_lines
from drumline_cli.run_arguments import AROUND_SECONDS
from drumline_cli.suspension import write_suspend
from drumline_cli.validation import check

_STEM_CHARS: Final = 40
"""Characters of a name's 50 that leave space for four letters."""

_INSIDE: Final = frozenset({"shell", "cp", "port-forward"})


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Do it, and say what was done.

    Raises:
        CommandError: there is no such job, or the cluster refuses.
    """
    # Phase 1: report mistakes in arguments before any access to the cluster.
    _check_arguments(chosen)
    credentials = chosen_credentials(chosen, environment)
    namespace = chosen.namespace or credentials.namespace
    # Deleting a shell is the same as deleting its job, and needs no Pod.
    if chosen.command == "shell" and chosen.delete:
        job = NamedJob(name=chosen.job, namespace=namespace)
        return asyncio.run(_once(credentials, job, chosen))
    # Phase 2: commands that end as kubectl. `_go_inside` never returns.
    if chosen.command in _INSIDE:
        _go_inside(credentials, chosen, namespace=namespace)
    job = NamedJob(name=chosen.job, namespace=namespace)
    # Phase 3: commands that follow a job, and commands with a single answer.
    if chosen.command == "logs" and chosen.follow:
        return follow_to_the_end(credentials, job=job.name, namespace=namespace)
    if chosen.command == "logs" and chosen.generation is not None:
        return _earlier_logs(credentials, job, chosen, environment)
    return asyncio.run(_once(credentials, job, chosen))


def _check_arguments(chosen: argparse.Namespace) -> None:
    """Refuse arguments that no cluster could make right, before a kubeconfig is read.

    Raises:
        BadInput: an argument is not of its form, or excludes another.
    """
    match chosen.command:
        # Following reads the live stream. These filters need the whole log.
        case "logs" if chosen.follow and (chosen.rank is not None or chosen.around is not None):
            raise BadInput(
                "--follow shows all lines as they are written; remove --rank and --around"
            )
        case "logs" if chosen.seconds is not None and chosen.around is None:
            raise BadInput("--seconds needs --around, because all lines are shown without it")
        case "logs" if chosen.follow and chosen.generation is not None:
            raise BadInput("--generation shows archived lines of deleted pods; remove -f")
        case "cp":
            copy_of(chosen.source, chosen.target)
        case "clone":
            check_changes(chosen.set)
        case _:
            pass


def _earlier_logs(
    credentials: Credentials,
    job: NamedJob,
    chosen: argparse.Namespace,
    environment: Mapping[str, str],
) -> Output:
    """Return the selected archived lines of a generation's pods, in order of time."""
    # The archive client is a large import, and few calls need it.
    from drumline_cli.archived_jobs import (  # noqa: PLC0415 - rarely asked for
        archived_earlier_logs,
        refuse_identity,
    )

    refuse_identity(chosen)

    async def read() -> Json:
        async with cluster_client(credentials) as client:
            return await read_job(client, job=job.name, namespace=job.namespace)

    # The name may belong to a newer job, so the archive is searched by uid.
    raw = asyncio.run(read())
    selection = _selection(raw, chosen)
    texts = archived_earlier_logs(
        chosen.archive,
        environment,
        namespace=job.namespace,
        uid=str(raw["metadata"]["uid"]),
        generation=chosen.generation,
    )
    lines = (line for line in archived_lines(texts) if selection.keeps(line))
    return Output(text="".join(f"{line.shown}\n" for line in lines))


def _selection(raw: Json, chosen: argparse.Namespace) -> LogSelection:
    seconds = AROUND_SECONDS if chosen.seconds is None else chosen.seconds
    return selection_of(
        raw, rank=chosen.rank, around=chosen.around, seconds=seconds, now=time.time()
    )


def _go_inside(credentials: Credentials, chosen: argparse.Namespace, *, namespace: str) -> NoReturn:
    """Find the pod, and become kubectl."""
    copy = copy_of(chosen.source, chosen.target) if chosen.command == "cp" else None
    # `shell JOB` alone attaches to the job's own terminal. A command opens a new process.
    is_plain = chosen.command == "shell" and chosen.rank is None and not chosen.command_line

    async def find_pod() -> tuple[str, bool]:
        """Return the pod's name, and whether to attach to the job's own terminal."""
        async with cluster_client(credentials) as client:
            raw = await read_job(client, job=copy.job if copy else chosen.job, namespace=namespace)
            # A job of `drumline shell` has a terminal that survives a lost connection.
            if is_plain and has_terminal(raw):
                # An idle shell was suspended. Reconnecting queues it again.
                await resume_idle(client, raw, say=say)
                return await wait_for_terminal(client, raw, say=say), True
            uid = str(raw["metadata"]["uid"])
            pods = await started_pods(client, uid=uid, namespace=namespace)
            return chosen_pod(raw, pods, rank=chosen.rank).name, False

    try:
        pod, attaches = asyncio.run(find_pod())
    # Waiting may take hours. Ctrl-C leaves the job in its queue.
    except KeyboardInterrupt:
        job = NamedJob(namespace=namespace, name=copy.job if copy else chosen.job)
        raise NotAnswered(
            f"interrupted; {job.name} continues: drumline shell {job.words} connects to it again,"
            f" drumline stop {job.words} suspends it"
        ) from None
    cluster = ChosenCluster.of(chosen, namespace=namespace)
    if copy is not None:
        if copy.from_pod:
            check_source(cluster, pod, copy)
        arguments = copy_arguments(pod, copy)
    elif attaches:
        # A terminal is requested only if there is one here. Otherwise kubectl prints a warning.
        arguments = attach_arguments(pod, terminal=sys.stdin.isatty())
    elif chosen.command == "shell":
        arguments = shell_arguments(pod, chosen.command_line, terminal=sys.stdin.isatty())
    else:
        arguments = forward_arguments(pod, chosen.ports)
    become_kubectl(cluster, arguments)


def follow_to_the_end(credentials: Credentials, *, job: str, namespace: str) -> Output:
    """Follow a job until it ends. Ctrl-C stops following, and the job continues.

    Args:
        credentials: access to the API server.
        job: name of the job.
        namespace: namespace of the job.
    """

    async def follow() -> int:
        async with cluster_client(credentials) as client:
            return await follow_job(client, job=job, namespace=namespace, say=say)

    try:
        return Output(text="", exit_code=asyncio.run(follow()))
    # Ctrl-C ends only the command. Users expect a submitted job to continue.
    except KeyboardInterrupt:
        return Output(
            text="\n"
            f"{job} continues in the background. Follow it again: drumline logs -f {job} -n"
            f" {namespace}; release its GPUs: drumline stop {job} -n {namespace}\n"
        )


def say(line: str) -> None:
    """Print a line at once: somebody watches.

    Raises:
        BrokenPipeError: the reader has gone.
        OutputLost: the line cannot be written.
    """
    try:
        sys.stdout.write(f"{line}\n")
        # Output through a pipe is buffered otherwise, and lines would arrive late.
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputLost(f"standard output: {error.strerror}") from None


async def _once(credentials: Credentials, job: NamedJob, chosen: argparse.Namespace) -> Output:
    command: str = chosen.command
    async with cluster_client(credentials) as client:
        # One client for both reads and writes of a command, and one place for errors.
        try:
            match command:
                case "logs":
                    return Output(text=await _logs(client, job, chosen))
                case "stop":
                    return await _suspend(client, job, suspend=True)
                case "resume":
                    return await _suspend(client, job, suspend=False)
                case "hold":
                    return await _hold(client, job, seconds=chosen.seconds)
                case "clone":
                    return await _clone(client, job, chosen)
                case "retry":
                    return await _retry(client, job, chosen)
                case _:
                    return await _delete(client, job)
        # A missing job and a missing CRD both answer 404. The message distinguishes them.
        except errors.NotFound as error:
            reason = missing_job(error, job=job.name, namespace=job.namespace)
            raise NotAnswered(reason) from None
        except errors.KubeError as error:
            raise NotAnswered(refusal(error, what=job.text, verb=command)) from None


async def _logs(client: KubeClient, job: NamedJob, chosen: argparse.Namespace) -> str:
    """Return the logs of all pods, or the selected part, in order of time."""
    raw = await read_job(client, job=job.name, namespace=job.namespace)
    selection = _selection(raw, chosen)
    uid = str(raw["metadata"]["uid"])
    lines = await written_lines(client, selection, uid=uid, namespace=job.namespace)
    # No lines is not an error. Standard error explains it, and standard output stays empty.
    if not lines:
        said = state_line(cast("Json", raw.get("status") or {}))
        sys.stderr.write(f"drumline: no logs of {job.text} match. {said}\n")
    return "".join(f"{line.shown}\n" for line in lines)


async def _suspend(client: KubeClient, job: NamedJob, *, suspend: bool) -> Output:
    # The operator saves first. Its Pods leave only after the checkpoint.
    await write_suspend(client, name=job.name, namespace=job.namespace, suspend=suspend)
    if suspend:
        text = f"{job.text} releases its GPUs after it has saved; drumline resume {job.words}\n"
    else:
        text = f"{job.text} is queued again; drumline logs -f {job.words}\n"
    return Output(text=text)


async def _hold(client: KubeClient, job: NamedJob, *, seconds: int) -> Output:
    raw = await read_job(client, job=job.name, namespace=job.namespace)
    # A failed job may be held: its copy by `retry` has the same spec.
    if cast("Json", raw.get("status") or {}).get("phase") == "Succeeded":
        raise NotAnswered(f"{job.text} has ended (Succeeded); its pods never start again")
    await writes.merge_patch(
        client,
        TRAINING_JOBS,
        name=job.name,
        namespace=job.namespace,
        # Null removes the field in a merge patch. Zero is not valid in the CRD.
        body={"spec": {"recovery": {"holdSeconds": seconds or None}}},
    )
    if not seconds:
        return Output(text=f"{job.text}: pods of a failed script end immediately again\n")
    return Output(
        text=f"{job.text}: from its next start in new pods, the pods of a script that failed"
        f" permanently stay for {seconds} s with their GPUs; then: drumline shell"
        f" {job.words}; drumline stop {job.words}\n"
    )


async def _clone(client: KubeClient, job: NamedJob, chosen: argparse.Namespace) -> Output:
    raw = await read_job(client, job=job.name, namespace=job.namespace)
    name: str = chosen.name or fresh_name(job.name)
    manifest = cloned(raw, name=name, changes=chosen.set, command=chosen.command_line)
    # The same checks as the server, but with the name of the field and a hint.
    check(manifest)
    await create_clone(client, manifest, original=job.text)
    # A program needs the name only, in the form that kubectl accepts.
    if chosen.output == "name":
        return _named(name)
    made = NamedJob(namespace=job.namespace, name=name)
    return Output(text=f"created {made.text}; follow it with drumline logs -f {made.words}\n")


async def _retry(client: KubeClient, job: NamedJob, chosen: argparse.Namespace) -> Output:
    raw = await read_job(client, job=job.name, namespace=job.namespace)
    status = cast("Json", raw.get("status") or {})
    phase = str(status.get("phase") or "Pending")
    # Only a permanent failure can be retried. All other phases have a better command.
    if phase != "Failed":
        remedy = {
            "Succeeded": f"drumline clone {job.words} runs it again",
            "Suspended": f"drumline resume {job.words} queues it again",
        }.get(phase, f"drumline stop {job.words} suspends it")
        raise NotAnswered(f"{job.text} has not failed: {phase}; {remedy}")
    name: str = chosen.name or fresh_name(job.name)
    # The new job reads the checkpoints of the failed one, so the folder must not change.
    manifest = retried(raw, name=name)
    check(manifest)
    await create_clone(client, manifest, original=job.text)
    if chosen.output == "name":
        return _named(name)
    path = manifest["spec"].get("checkpoint", {}).get("path")
    where = f"continues from checkpoint folder {path}" if path else "starts from the beginning"
    return Output(
        text=f"created trainingjob {job.namespace}/{name}, which {where}; follow it with drumline"
        f" logs -f {name} -n {job.namespace}\n"
    )


def _named(name: str) -> Output:
    return Output(text=f"trainingjob.{GROUP}/{name}\n")


def fresh_name(job: str) -> str:
    """Return a name for a copy of the job of this name."""
    # The stem is cut, because a name has at most 50 characters.
    return f"{job[:_STEM_CHARS].rstrip('-')}-{random_letters()}"


def random_letters() -> str:
    # Four letters give about 457,000 names, which suffices within a namespace.
    """Four letters by which jobs of one script differ in name."""
    return "".join(random.SystemRandom().choices(string.ascii_lowercase, k=4))


async def _delete(client: KubeClient, job: NamedJob) -> Output:
    # The operator ends the Pods. Each Pod gets its grace period.
    await writes.delete(client, TRAINING_JOBS, name=job.name, uid=None, namespace=job.namespace)
    return Output(text=f"{job.text} is deleted; its pods stop within their grace period\n")
