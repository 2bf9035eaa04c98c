"""Runs `drumline run`: packs the folder, creates the objects, follows the job."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast

from drumline.api.base import GROUP, VERSION
from drumline.cli.cluster_access import NOT_SERVED, cluster_client, find_credentials, refusal
from drumline.cli.errors import BadInput, NotAnswered
from drumline.cli.job_yaml import job_yaml
from drumline.cli.jobs.command import follow_to_the_end, random_letters, say
from drumline.cli.output import Output
from drumline.cli.run.bucket import CodeInBucket
from drumline.cli.run.manifests import (
    LABEL_SWEEP,
    RunRequest,
    code_manifests,
    code_source,
    job_manifest,
)
from drumline.cli.run.pack import PackedFolder, pack
from drumline.cli.run.request import run_request
from drumline.cli.run.source_files import source_files
from drumline.cli.run.sweep import sweep_requests
from drumline.kube import errors, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import CONFIG_MAPS, TRAINING_JOBS, TRAINING_QUEUES
from drumline_trainer.contract import plain

Json = dict[str, Any]

_QUEUE_VARIABLE: Final = "DRUMLINE_QUEUE"
_DRY_RUN_HEADER: Final = (
    "# kubectl apply --server-side -f FILE (without --server-side kubectl keeps a copy of each\n"
    "# object in an annotation, for which code over some 150 KB is too large)\n"
)
_UNSTORED: Final = "# not in its bucket yet: drumline run without --dry-run stores the code there\n"


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Create the job and follow it, or print its objects.

    Raises:
        CommandError: something is missing, the code is too large, or the cluster refuses.
    """
    letters = random_letters()
    queue = chosen.queue or environment.get(_QUEUE_VARIABLE)
    if chosen.dry_run:
        if not queue:
            raise BadInput(
                f"which queue? --dry-run asks no cluster: give --queue or {_QUEUE_VARIABLE}"
            )
        request = run_request(
            chosen, environment, queue=queue, namespace=chosen.namespace, letters=letters
        )
        requests = sweep_requests(request, chosen.sweep, max_parallel=chosen.max_parallel)
        return Output(text=_dry_run(request, requests, _packed(chosen, environment)))
    credentials = find_credentials(
        environment, kubeconfig=chosen.kubeconfig, context=chosen.context
    )
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
            named = queue or await _only_queue(client)
            for each in requests:
                manifest = job_manifest(replace(each, queue=named), code)
                await _create(client, manifest, parts, namespace=namespace)
                say(_created(each, packed))

    asyncio.run(submit())
    if chosen.sweep:
        return Output(
            text=f"see them: kubectl get trainingjobs -n {namespace} -l {LABEL_SWEEP}="
            f"{request.name}; drumline logs -f {requests[0].name} -n {namespace}\n"
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
    unstored = _UNSTORED if isinstance(request.code_from, CodeInBucket) else ""
    return _DRY_RUN_HEADER + unstored + job_yaml(manifests)


def _stored(code: CodeInBucket, environment: Mapping[str, str]) -> str:
    """The folder is in its bucket before any pod looks for it."""
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


async def _only_queue(client: KubeClient) -> str:
    """The queue that needs no naming.

    Raises:
        BadInput: there are several.
        NotAnswered: there is none, or they may not be listed.
    """
    try:
        listed = await reads.list_all(client, TRAINING_QUEUES)
    except errors.NotFound:
        raise NotAnswered(NOT_SERVED) from None
    except errors.KubeError as error:
        raise NotAnswered(
            f"{refusal(error, what='queues', verb='list')}; name yours with --queue or in"
            f" {_QUEUE_VARIABLE}"
        ) from None
    names = sorted(str(cast("Json", json.loads(queue))["metadata"]["name"]) for queue in listed)
    if not names:
        raise NotAnswered("this cluster has no TrainingQueue; ask its administrator for one")
    if len(names) > 1:
        shown = ", ".join(map(plain, names[:10]))
        raise BadInput(
            f"which queue? This cluster has {shown}; name yours with --queue or in"
            f" {_QUEUE_VARIABLE}"
        )
    return names[0]


async def _create(
    client: KubeClient, manifest: Json, code: Sequence[Json], *, namespace: str
) -> None:
    """The code, then the job, then the job as an owner of the code.

    The code is collected with the last job that owns it. It is there before the job, so that no pod
    waits for it; what is left over where the job is refused is taken back.
    """
    made = await _store_code(client, code, namespace=namespace)
    try:
        job = await writes.create(client, TRAINING_JOBS, body=manifest, namespace=namespace)
    except errors.KubeError as error:
        await _take_back(client, made, namespace=namespace)
        raise _job_refused(error, manifest, namespace=namespace) from None
    owner = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "TrainingJob",
        "name": manifest["metadata"]["name"],
        "uid": job.uid,
    }
    for part in code:
        name = part["metadata"]["name"]
        try:
            try:
                await writes.add_owner(
                    client, CONFIG_MAPS, name=name, namespace=namespace, owner=owner
                )
            except errors.NotFound:  # collected with its last owner, in between
                owned = {**part, "metadata": {**part["metadata"], "ownerReferences": [owner]}}
                await writes.create(client, CONFIG_MAPS, body=owned, namespace=namespace)
        except errors.KubeError as error:
            reason = refusal(error, what=f"configmap {name}", verb="own")
            say(f"drumline: {reason}; it stays until somebody deletes it")


async def _store_code(
    client: KubeClient, code: Sequence[Json], *, namespace: str
) -> dict[str, str]:
    """Create the ConfigMaps that are not there yet; name and uid of those that were made."""
    made: dict[str, str] = {}
    for part in code:
        name = part["metadata"]["name"]
        try:
            made[name] = (
                await writes.create(client, CONFIG_MAPS, body=part, namespace=namespace)
            ).uid
        except errors.AlreadyExists:
            continue  # the same bytes: the pods compare the digest
        except errors.KubeError as error:
            await _take_back(client, made, namespace=namespace)
            what = f"code for namespace {namespace} (configmap {name})"
            raise NotAnswered(refusal(error, what=what, verb="store")) from None
    return made


async def _take_back(client: KubeClient, made: Mapping[str, str], *, namespace: str) -> None:
    for name, uid in made.items():
        try:
            await writes.delete(client, CONFIG_MAPS, name=name, uid=uid, namespace=namespace)
        except errors.KubeError:
            say(f"drumline: configmap {name} is left in namespace {namespace}; delete it")


def _job_refused(error: errors.KubeError, manifest: Json, *, namespace: str) -> Exception:
    name = manifest["metadata"]["name"]
    if isinstance(error, errors.AlreadyExists):
        return BadInput(f"trainingjob {namespace}/{name} exists already; choose another --name")
    if isinstance(error, errors.NotFound):
        gone = f'"{namespace}"' in error.message
        return NotAnswered(f"there is no namespace {namespace!r}" if gone else NOT_SERVED)
    return NotAnswered(refusal(error, what=f"trainingjob {namespace}/{name}", verb="create"))
