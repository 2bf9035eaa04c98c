"""Connect a notebook to a cluster: its jobs, its queues, why a job waits, and new jobs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Self, TypedDict, Unpack

from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import queue_rows
from drumline.overview.why import why_card
from drumline_cli.cluster_access import cluster_client, find_credentials
from drumline_cli.errors import BadInput
from drumline_cli.jobs.command import random_letters, say
from drumline_cli.overview.read import only_job
from drumline_cli.run.manifests import RunRequest, code_manifests, code_source, job_manifest
from drumline_cli.run.pack import PackedFolder, pack
from drumline_cli.run.request import run_request
from drumline_cli.run.source_files import source_files
from drumline_cli.run.submission import QUEUE_VARIABLE, create_job, only_queue
from drumline_cli.run_arguments import add_run
from drumline_console.notebook.access import NotebookAccess
from drumline_console.notebook.job import NotebookJob
from drumline_console.notebook.loop_thread import LoopThread
from drumline_console.notebook.views import JobTable, QueueTable, WhyView


def connect(
    *,
    context: str | None = None,
    namespace: str | None = None,
    kubeconfig: str | os.PathLike[str] | None = None,
) -> NotebookConnection:
    """Connect to a cluster by the kubeconfig or a pod's service account, without a request yet.

    Args:
        context: context of the kubeconfig. None: the current context.
        namespace: namespace of the jobs. None: the context's namespace.
        kubeconfig: file to use instead of `KUBECONFIG`.

    Raises:
        BadInput: there is no usable kubeconfig.
    """
    # No request yet: a wrong server fails at the first use.
    file = None if kubeconfig is None else Path(kubeconfig)
    credentials = find_credentials(os.environ, kubeconfig=file, context=context)
    access = NotebookAccess(
        credentials=credentials, namespace=namespace or credentials.namespace, loop=LoopThread()
    )
    return NotebookConnection(access)


class NotebookConnection:
    """A cluster, with the rights of the kubeconfig.

    `with` closes the connection. It also closes when the object is deleted.

    Args:
        access: credentials and namespace.
    """

    def __init__(self, access: NotebookAccess) -> None:
        self._access = access

    @property
    def namespace(self) -> str:
        """Return the namespace of jobs that are given by name only."""
        return self._access.namespace

    def jobs(self, *, queue: str | None = None, all_namespaces: bool = False) -> JobTable:
        """Return the jobs of the namespace.

        Args:
            queue: only jobs of this queue.
            all_namespaces: also jobs of other namespaces that may be read.

        Raises:
            NotAnswered: the jobs cannot be read.
        """
        cluster = self._access.cluster()
        # Positions count the jobs of all namespaces, so they are computed before the filter.
        places = positions(lines(cluster.jobs, cluster.priorities))
        wanted = [
            job
            for job in cluster.jobs
            if (all_namespaces or job.metadata.namespace == self.namespace)
            and queue in (None, job.spec.queue)
        ]
        rows = job_rows(wanted, now=cluster.as_of, places=places, units=PoolUnits(cluster.pools))
        return JobTable(items=rows, as_of=cluster.as_of, remarks=cluster.remarks)

    def job(self, name: str) -> NotebookJob:
        """Return the job of this name.

        Raises:
            NotAnswered: the job does not exist or cannot be read.
        """
        return NotebookJob(self._access, self._access.job(name))

    def queues(self) -> QueueTable:
        """Return all queues with their quotas and pending jobs.

        Raises:
            NotAnswered: the jobs cannot be read.
        """
        cluster = self._access.cluster()
        rows = queue_rows(cluster)
        return QueueTable(items=rows, as_of=cluster.as_of, remarks=cluster.remarks)

    def why(self, name: str) -> WhyView:
        """Return why a job waits, and what would help.

        Raises:
            NotAnswered: the job does not exist, or the jobs cannot be read.
        """
        cluster = self._access.cluster()
        job = only_job(cluster, namespace=self.namespace, name=name)
        card = why_card(cluster, job)
        return WhyView(card=card, as_of=cluster.as_of, remarks=cluster.remarks)

    def run(
        self,
        command: Sequence[str],
        *,
        nodes: int = 1,
        gpus: int = 1,
        folder: str | os.PathLike[str] | None = ".",
        **options: Unpack[RunOptions],
    ) -> NotebookJob:
        """Create a job that runs a command with the code of a folder, as `drumline run` does.

        Args:
            command: program and arguments.
            nodes: number of pods.
            gpus: GPUs per pod.
            folder: folder to pack, with the files that git would keep. None: the image has the
                code.
            options: further options of `drumline run`.

        Raises:
            CommandError: an option is missing, the code is too large, or the cluster refuses.
        """
        # A string would be split into letters.
        if isinstance(command, str):
            raise BadInput("the command must be a list: ['python', 'train.py']")
        # The options are those of the command line, so both parse and check the same way.
        chosen = run_arguments(**options)
        chosen.command_line, chosen.nodes, chosen.gpus = list(command), nodes, gpus
        chosen.folder, chosen.no_code = Path(folder or "."), folder is None
        queue = chosen.queue or os.environ.get(QUEUE_VARIABLE) or ""
        request = run_request(
            chosen,
            os.environ,
            queue=queue,
            namespace=self.namespace,
            letters=random_letters(),
        )
        packed = (
            None if folder is None else pack(chosen.folder, source_files(chosen.folder, os.environ))
        )
        # Submitting blocks the cell. The job itself runs without the notebook.
        self._access.loop.run(self._submit(request, packed))
        return self.job(request.name)

    def close(self) -> None:
        """Close the connection and its thread. Its jobs can no longer send requests."""
        self._access.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{self._access.credentials.server}, namespace {self.namespace}"

    async def _submit(self, request: RunRequest, packed: PackedFolder | None) -> None:
        async with cluster_client(self._access.credentials) as client:
            # The ConfigMaps exist before the job, so no pod waits for its code.
            parts = code_manifests(packed, namespace=self.namespace) if packed else []
            code = code_source(packed, parts) if packed else None
            queue = request.queue or await only_queue(client)
            manifest = job_manifest(replace(request, queue=queue), code)
            await create_job(client, manifest, parts, namespace=self.namespace, say=say)


class RunOptions(TypedDict, total=False):
    """Options by name. `drumline run --help` describes them."""

    queue: str
    """Default: DRUMLINE_QUEUE, or the cluster's only queue."""
    image: str
    """Default: DRUMLINE_IMAGE."""
    name: str
    """Default: the script's name and four random letters."""
    launch: str
    """PerGpu or PerPod. Default: depends on the command."""
    requirements: str | os.PathLike[str]
    """File of packages that the image lacks."""
    pool: str
    """A GpuPool."""
    priority: str
    """A PriorityClass."""
    after: Sequence[str]
    """Jobs that must have succeeded, or ended (`JOB:Finished`), before this job starts."""
    env: Mapping[str, str]
    """Environment variables."""
    claim: Mapping[str, str]
    """Claims and their mount paths."""
    resources: Mapping[str, str]
    """Resources of each pod besides its GPUs: cpu, memory."""


_PAIRS: Final = frozenset({"env", "claim"})


def run_arguments(**options: Unpack[RunOptions]) -> argparse.Namespace:
    """Return the arguments of `drumline run` with its defaults and the given options.

    Raises:
        BadInput: an option is unknown.
    """
    grammar = argparse.ArgumentParser()
    add_run(grammar)
    chosen = grammar.parse_args([])
    known = RunOptions.__annotations__
    for name, value in options.items():
        if name not in known:
            raise BadInput(f"run has no option {name!r}; its options are {', '.join(known)}")
        setattr(chosen, name, value)
    chosen.after = list(chosen.after)
    for name in _PAIRS & options.keys():
        setattr(chosen, name, _pairs(getattr(chosen, name), option=name))
    if "resources" in options:
        chosen.resources = ",".join(_pairs(options["resources"], option="resources"))
    if "requirements" in options:
        chosen.requirements = Path(options["requirements"])
    return chosen


def _pairs(given: Mapping[str, str], *, option: str) -> list[str]:
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a notebook
        raise BadInput(f"{option} is a dict: {option}={{'NAME': 'VALUE'}}")
    return [f"{name}={value}" for name, value in given.items()]
