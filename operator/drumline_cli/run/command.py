"""Runs `drumline run`: packs the folder, creates the objects, follows the job."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from drumline_cli.cluster_access import chosen_credentials, cluster_client
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.job_yaml import job_yaml
from drumline_cli.jobs.command import follow_to_the_end, random_letters, say
from drumline_cli.run.bucket import CodeInBucket
from drumline_cli.run.manifests import (
    LABEL_SWEEP,
    RunRequest,
    code_manifests,
    code_source,
    job_manifest,
)
from drumline_cli.run.pack import PackedFolder, pack
from drumline_cli.run.request import run_request
from drumline_cli.run.source_files import source_files
from drumline_cli.run.submission import QUEUE_VARIABLE, create_job, only_queue
from drumline_cli.run.sweep import sweep_requests
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
    letters = random_letters()
    queue = chosen.queue or environment.get(QUEUE_VARIABLE)
    if chosen.dry_run:
        if not queue:
            raise BadInput(
                "no queue is given, and --dry-run reads no cluster; use --queue or"
                f" {QUEUE_VARIABLE}"
            )
        request = run_request(
            chosen, environment, queue=queue, namespace=chosen.namespace, letters=letters
        )
        requests = sweep_requests(request, chosen.sweep, max_parallel=chosen.max_parallel)
        return Output(text=_dry_run(request, requests, _packed(chosen, environment)))
    credentials = chosen_credentials(chosen, environment)
    namespace: str = chosen.namespace or credentials.namespace
    # What is wrong with the arguments or the folder is said before any cluster is asked.
    request = run_request(
        chosen, environment, queue=queue or "", namespace=namespace, letters=letters
    )
    requests = sweep_requests(request, chosen.sweep, max_parallel=chosen.max_parallel)
    packed = _packed(chosen, environment)

    async def submit() -> None:
        async with cluster_client(credentials) as client:
            if isinstance(request.code_from, CodeInBucket):
                say(_stored(request.code_from, environment))
            parts = code_manifests(packed, namespace=namespace) if packed else []
            code = code_source(packed, parts) if packed else None
            named = queue or await only_queue(client)
            for each in requests:
                manifest = job_manifest(replace(each, queue=named), code)
                check(manifest)
                await create_job(client, manifest, parts, namespace=namespace, say=say)
                say(_created(each, packed))

    asyncio.run(submit())
    if chosen.sweep:
        return Output(
            text=f"list them: kubectl get trainingjobs -n {namespace} -l"
            f" {LABEL_SWEEP}={request.name}; drumline logs -f {requests[0].name} -n"
            f" {namespace}\n"
        )
    if chosen.detach:
        return Output(text=f"follow it: drumline logs -f {request.name} -n {namespace}\n")
    return follow_to_the_end(credentials, job=request.name, namespace=namespace)


def _packed(chosen: argparse.Namespace, environment: Mapping[str, str]) -> PackedFolder | None:
    if chosen.no_code or chosen.code_from:
        return None
    return pack(chosen.folder, source_files(chosen.folder, environment))


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
