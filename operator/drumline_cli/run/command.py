"""Runs `drumline run`: packs the folder, creates the objects, follows the job."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Final

from drumline.kube.client import KubeClient
from drumline_api.base import GROUP
from drumline_cli.cluster_access import chosen_credentials, cluster_client
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.job_yaml import job_yaml
from drumline_cli.jobs.command import follow_to_the_end, random_letters, say
from drumline_cli.run.bucket import CodeInBucket
from drumline_cli.run.command_words import script_of
from drumline_cli.run.manifests import (
    RunRequest,
    code_manifests,
    code_source,
    job_manifest,
)
from drumline_cli.run.pack import PackedFolder, pack
from drumline_cli.run.request import run_request
from drumline_cli.run.source_files import source_files
from drumline_cli.run.submission import (
    QUEUE_VARIABLE,
    Json,
    Say,
    check_dry_run,
    create_job,
    only_queue,
    secret_variables,
    warn,
)
from drumline_cli.run.sweep import sweep_requests
from drumline_cli.run.variables import whole_secrets
from drumline_cli.validation import check

_DRY_RUN_HEADER: Final = (
    "# kubectl apply --server-side -f FILE (without --server-side kubectl keeps a copy of each\n"
    "# object in an annotation, which is too small for code over about 150 KB)\n"
)
_UNSTORED: Final = "# not in its bucket yet: drumline run without --dry-run uploads the code\n"


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Create the job and follow it, or print its objects.

    Raises:
        CommandError: something is missing, the code is too large, or the cluster refuses.
    """
    # Phase 1: everything that needs no cluster.
    queue = chosen.queue or environment.get(QUEUE_VARIABLE)
    # Mistakes in the arguments or the folder are reported before a kubeconfig or a cluster is read.
    request = run_request(
        chosen,
        environment,
        queue=queue or "",
        namespace=chosen.namespace,
        letters=random_letters(),
    )
    requests = sweep_requests(request, chosen.sweep, max_parallel=chosen.max_parallel)
    whole = whole_secrets(chosen)
    if chosen.dry_run:
        check_dry_run(queue, whole)
    # Packing comes before the first request, so a large folder fails early.
    packed = _packed(chosen, environment)
    warn(request.warnings)
    if chosen.dry_run:
        return Output(text=_dry_run(request, requests, packed))
    _check(requests, packed)
    # Phase 2: the cluster. A dry run has returned before this line.
    credentials = chosen_credentials(chosen, environment)
    namespace: str = chosen.namespace or credentials.namespace
    # With -o name only names may appear on standard output.
    says = _say_nothing if chosen.output == "name" else say

    async def submit() -> None:
        async with cluster_client(credentials) as client:
            # Upload first: a pod may start seconds after its job exists.
            if isinstance(request.code_from, CodeInBucket):
                says(_stored(request.code_from, environment))
            named = queue or await only_queue(client)
            secrets = await secret_variables(client, whole, namespace=namespace)
            wanted = [_completed(each, named, namespace, secrets) for each in requests]
            await _create(client, wanted, packed, namespace=namespace, say=says)

    asyncio.run(submit())
    # Phase 3: follow, unless the user or the number of jobs makes that pointless.
    if chosen.output == "name":
        return Output(text="".join(f"trainingjob.{GROUP}/{each.name}\n" for each in requests))
    if chosen.sweep:
        return Output(
            text=f"compare them: drumline sweep {request.name} -n {namespace}; drumline logs -f"
            f" {requests[0].name} -n {namespace}\n"
        )
    if chosen.detach:
        return Output(text=f"follow it: drumline logs -f {request.name} -n {namespace}\n")
    return follow_to_the_end(credentials, job=request.name, namespace=namespace)


def _completed(
    request: RunRequest, queue: str, namespace: str, secrets: tuple[Json, ...]
) -> RunRequest:
    """Return a request with what the cluster or the kubeconfig adds."""
    variables = replace(request.variables, env=(*request.variables.env, *secrets))
    return replace(request, queue=queue, namespace=namespace, variables=variables)


async def _create(
    client: KubeClient,
    requests: Sequence[RunRequest],
    packed: PackedFolder | None,
    *,
    namespace: str,
    say: Say,
) -> None:
    parts = code_manifests(packed, namespace=namespace) if packed else []
    code = code_source(packed, parts) if packed else None
    # Jobs of a sweep share the ConfigMaps, so the code is stored once.
    for each in requests:
        manifest = job_manifest(each, code)
        check(manifest)
        await create_job(client, manifest, parts, namespace=namespace, say=say)
        say(_created(each, packed))


def _say_nothing(_line: str) -> None:
    """Print nothing: a program reads the output."""


def _check(requests: Sequence[RunRequest], packed: PackedFolder | None) -> None:
    """Refuse jobs that the API server would refuse, whatever their queue and namespace are."""
    code = code_source(packed, code_manifests(packed)) if packed else None
    for each in requests:
        # Queue and namespace may be unknown here. Any valid name passes the check.
        check(job_manifest(replace(each, queue=each.queue or "queue"), code))


def _packed(chosen: argparse.Namespace, environment: Mapping[str, str]) -> PackedFolder | None:
    if chosen.no_code or chosen.code_from:
        return None
    files = source_files(chosen.folder, environment)
    _check_script(chosen.command_line, chosen.folder, files)
    return pack(chosen.folder, files)


def _check_script(command: Sequence[str], folder: Path, files: Sequence[str]) -> None:
    """Refuse a script that is not among the files that pods get, or that they cannot start.

    Raises:
        BadInput: the first script of the command is a relative path without a file, or the program
            is a file that is not executable or not named by a path.
    """
    script = script_of(command)
    if not script:
        return
    path = str(PurePosixPath(script))
    # A missing script would fail only in the pods, perhaps after hours of waiting.
    if path not in files:
        near = get_close_matches(script, files, n=1)
        hint = f"; did you mean {near[0]}?" if near else ". Add it, or use --no-code"
        raise BadInput(f"{script} is not among the files of the folder that pods get{hint}")
    if script != command[0]:
        return
    with_shell = f"{'python' if path.endswith('.py') else 'bash'} {path}"
    if "/" not in script:
        raise BadInput(f"{script} is a file, not a program; write {with_shell}")
    if not os.access(folder / path, os.X_OK):
        raise BadInput(f"{script} is not executable; write {with_shell}, or run chmod +x {path}")


def _dry_run(
    request: RunRequest, requests: Sequence[RunRequest], packed: PackedFolder | None
) -> str:
    if packed is None:
        manifests = [job_manifest(each, None) for each in requests]
    else:
        # Names of the job's own: kubectl gives them no owner, so they must outlive the last owner
        # of equal code that was stored by others.
        parts = code_manifests(packed, namespace=request.namespace, prefix=f"{request.name}-code")
        code = code_source(packed, parts)
        manifests = [*parts, *(job_manifest(each, code) for each in requests)]
    # A dry run checks too, so that its output can be applied.
    for manifest in manifests:
        check(manifest)
    unstored = _UNSTORED if isinstance(request.code_from, CodeInBucket) else ""
    return _DRY_RUN_HEADER + unstored + job_yaml(manifests)


def _stored(code: CodeInBucket, environment: Mapping[str, str]) -> str:
    """Upload the folder to its bucket before any pod needs it."""
    size = len(code.packed.content) / 1e6
    text = f"code {code.packed.digest[:19]} ({code.packed.files} files, {size:.1f} MB packed)"
    is_new = code.store(environment)
    return f"{text} {'stored' if is_new else 'is already'} in s3://{code.bucket}/{code.key}"


def _created(request: RunRequest, packed: PackedFolder | None) -> str:
    line = f"trainingjob {request.namespace}/{request.name}: {request.nodes} x {request.gpus} GPUs"
    if request.parameters:
        return f"{line}, {request.parameters}"
    if packed is None:
        return line
    size = len(packed.content) / 1000
    return f"{line}, code {packed.digest[:19]} ({packed.files} files, {size:.1f} KB packed)"
