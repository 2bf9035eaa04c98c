"""Creates a job at the API server: its code first, then the job, which owns the code then.

What cannot be undone or finished is said through `say`: whoever calls decides where that is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from drumline.kube import errors, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import CONFIG_MAPS, SECRETS, TRAINING_JOBS, TRAINING_QUEUES
from drumline_api.base import GROUP, VERSION
from drumline_cli.cluster_access import NOT_SERVED, refusal
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.run.variables import from_keys
from drumline_contract import plain

Json = dict[str, Any]
Say = Callable[[str], None]

QUEUE_VARIABLE: Final = "DRUMLINE_QUEUE"
"""The queue of those who name none."""


async def only_queue(client: KubeClient) -> str:
    """Return the queue that needs no naming.

    Raises:
        BadInput: there are several.
        NotAnswered: there is none, or they may not be listed.
    """
    try:
        listed = await reads.list_all(client, TRAINING_QUEUES)
        names = sorted(str(reads.document(queue)["metadata"]["name"]) for queue in listed)
    except errors.NotFound:
        raise NotAnswered(NOT_SERVED) from None
    except errors.KubeError as error:
        raise NotAnswered(
            f"{refusal(error, what='queues', verb='list')}; set the queue with --queue or"
            f" {QUEUE_VARIABLE}"
        ) from None
    # No queue: only an administrator can help.
    if not names:
        raise NotAnswered("this cluster has no TrainingQueue; ask its administrator for one")
    # Ten names suffice to recognize the right one.
    if len(names) > 1:
        shown = ", ".join(map(plain, names[:10]))
        raise BadInput(f"this cluster has {shown}; set the queue with --queue or {QUEUE_VARIABLE}")
    return names[0]


async def secret_variables(
    client: KubeClient, names: Sequence[str], *, namespace: str
) -> tuple[Json, ...]:
    """Return a variable for each key of these Secrets. Values are not kept.

    Args:
        client: sends the requests.
        names: names of the Secrets.
        namespace: namespace of the job.

    Raises:
        BadInput: a Secret has no key, or a key is not a variable's name.
        NotAnswered: a Secret does not exist or may not be read.
    """
    variables: list[Json] = []
    for name in names:
        try:
            raw = await reads.get_document(client, SECRETS, name=name, namespace=namespace)
        except errors.NotFound:
            raise NotAnswered(f"secret {namespace}/{name} does not exist") from None
        except errors.KubeError as error:
            # A user may often use a Secret without reading it.
            raise NotAnswered(
                f"{refusal(error, what=f'secret {namespace}/{name}')}; name its keys: --secret"
                f" {name}=KEY"
            ) from None
        keys: Json = raw.get("data") or {}
        variables += from_keys(name, list(keys))
    return tuple(variables)


def check_dry_run(queue: str | None, secrets: Sequence[str]) -> None:
    """Refuse a dry run that would need the cluster.

    Raises:
        BadInput: no queue is given, or the keys of a Secret are not.
    """
    if not queue:
        raise BadInput(
            f"no queue is given, and --dry-run reads no cluster; use --queue or {QUEUE_VARIABLE}"
        )
    for name in secrets:
        raise BadInput(
            f"--secret {name}: --dry-run reads no cluster, so name a key: --secret {name}=KEY"
        )


def warn(sentences: Sequence[str]) -> None:
    """Print sentences to standard error."""
    # Standard error keeps the output usable for scripts.
    for sentence in sentences:
        sys.stderr.write(f"drumline: {plain(sentence)}\n")


async def create_job(
    client: KubeClient, manifest: Json, code: Sequence[Json], *, namespace: str, say: Say
) -> None:
    """Create the code, then the job, then make the job the owner of the code.

    The code exists before the job, so that no pod waits for it. If the job is refused, the code is
    deleted again. Otherwise Kubernetes deletes it with the last job that owns it.

    Args:
        client: sends the requests.
        manifest: the TrainingJob.
        code: ConfigMaps or Secrets with the code.
        namespace: namespace of the job.
        say: prints a line for the user.
    """
    # Phase 1: store the code. A pod must not wait for it.
    made = await _store_code(client, code, namespace=namespace, say=say)
    try:
        job = await writes.create(client, TRAINING_JOBS, body=manifest, namespace=namespace)
    except errors.KubeError as error:
        # A refused job must not leave its code behind.
        await _take_back(client, made, namespace=namespace, say=say)
        raise _job_refused(error, manifest, namespace=namespace) from None
    # Phase 2: make the job the owner, so that Kubernetes deletes the code with the last job.
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
                # The last owner of equal code was deleted a moment ago. Create the code again.
                owned = {**part, "metadata": {**part["metadata"], "ownerReferences": [owner]}}
                await writes.create(client, CONFIG_MAPS, body=owned, namespace=namespace)
        except errors.KubeError as error:
            # The job runs anyway, so this is only reported.
            reason = refusal(error, what=f"configmap {name}", verb="own")
            say(f"drumline: {reason}; it stays until you delete it")


async def _store_code(
    client: KubeClient, code: Sequence[Json], *, namespace: str, say: Say
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
            await _take_back(client, made, namespace=namespace, say=say)
            what = f"code for namespace {namespace} (configmap {name})"
            raise NotAnswered(refusal(error, what=what, verb="store")) from None
    return made


async def _take_back(
    client: KubeClient, made: Mapping[str, str], *, namespace: str, say: Say
) -> None:
    for name, uid in made.items():
        try:
            # The uid protects a ConfigMap that another user has created meanwhile.
            await writes.delete(client, CONFIG_MAPS, name=name, uid=uid, namespace=namespace)
        except errors.KubeError:
            say(f"drumline: configmap {name} was not deleted in namespace {namespace}; delete it")


def _job_refused(error: errors.KubeError, manifest: Json, *, namespace: str) -> Exception:
    name = manifest["metadata"]["name"]
    if isinstance(error, errors.AlreadyExists):
        return BadInput(f"trainingjob {namespace}/{name} already exists; choose another --name")
    if isinstance(error, errors.NotFound):
        # A 404 may mean the namespace or the CRD. The message tells them apart.
        gone = f'"{namespace}"' in error.message
        return NotAnswered(f"namespace {namespace!r} does not exist" if gone else NOT_SERVED)
    return NotAnswered(refusal(error, what=f"trainingjob {namespace}/{name}", verb="create"))
