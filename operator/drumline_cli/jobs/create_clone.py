"""Creates the copy of a job in the cluster, with a share in the code that the first one owns."""

from __future__ import annotations

from typing import Any

from drumline.kube import errors, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import CONFIG_MAPS, TRAINING_JOBS
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.jobs.clone import shared_parts


async def create_clone(client: KubeClient, manifest: dict[str, Any], *, original: str) -> None:
    """Create it; nothing is left of it where the code is gone.

    Args:
        client: the cluster.
        manifest: manifest of the new job.
        original: the job that it is a copy of, as people call it.

    Raises:
        BadInput: the name is taken.
        NotAnswered: the code of the first job is gone.
        KubeError: the cluster refuses.
    """
    # Create the job first. Its uid is needed for the ownership of the code.
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    try:
        made = await writes.create(client, TRAINING_JOBS, body=manifest, namespace=namespace)
    except errors.AlreadyExists:
        raise BadInput(
            f"trainingjob {namespace}/{name} already exists; choose another name"
        ) from None
    owner = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        "name": name,
        "uid": made.uid,
    }
    for part in shared_parts(manifest):
        try:
            await writes.add_owner(client, CONFIG_MAPS, name=part, namespace=namespace, owner=owner)
        except errors.NotFound:
            # A job without its code would wait forever, so it is deleted again.
            await writes.delete(client, TRAINING_JOBS, name=name, uid=made.uid, namespace=namespace)
            raise NotAnswered(
                f"the code of {original} was deleted (configmap {part}); submit it with drumline"
                " run"
            ) from None
