"""Runs `drumline cp`: through a running pod of a job, or through a pod that mounts a claim."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from drumline_cli.claims.claim_pod import ClaimPod, kubectl, remote_command, running_pod
from drumline_cli.claims.paths import ClaimCopy, claim_copy
from drumline_cli.claims.transfer import download, local_files, upload
from drumline_cli.cluster_access import chosen_credentials, cluster_client
from drumline_cli.columns import gib
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.jobs import command as jobs
from drumline_cli.jobs.command import random_letters, say
from drumline_cli.jobs.inside import ChosenCluster

MOUNT: Final = "/claim"


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Copy the files.

    Raises:
        CommandError: an argument is missing, the cluster refuses, or the copy breaks off.
    """
    copy = claim_copy(chosen.source, chosen.target)
    if copy is None:
        return jobs.run(chosen, environment)
    if chosen.rank is not None:
        raise BadInput("--rank chooses a pod of a job; remove it for a claim")
    return _copy(chosen, environment, copy)


def _copy(chosen: argparse.Namespace, environment: Mapping[str, str], copy: ClaimCopy) -> Output:
    image = image_of(chosen, environment)
    source = Path(copy.local)
    if copy.to_claim:
        next(local_files(source), None)  # a missing file is reported before a pod is made
    kubectl()
    credentials = chosen_credentials(chosen, environment)
    namespace = chosen.namespace or credentials.namespace
    pod = ClaimPod(
        name=f"drumline-cp-{random_letters()}",
        image=image,
        claims={MOUNT: (copy.claim.claim, not copy.to_claim)},
        user=chosen.user,
        pull_secrets=tuple(chosen.pull_secret),
        node=chosen.node or "",
    )
    cluster = ChosenCluster.of(chosen, namespace=namespace)
    there = target_in(copy, mount=MOUNT)

    async def work() -> int:
        async with (
            cluster_client(credentials) as client,
            running_pod(client, pod, namespace=namespace, seconds=chosen.wait, say=say),
        ):
            run_there = remote_command(cluster, pod.name)
            if copy.to_claim:
                return await asyncio.to_thread(upload, source, there, run_there)
            return await asyncio.to_thread(download, there, Path(copy.local), run_there)

    moved = asyncio.run(work())
    verb = "to" if copy.to_claim else "from"
    return Output(text=f"copied {copy.local} {verb} {copy.claim}: {gib(moved)} moved\n")


def target_in(copy: ClaimCopy, *, mount: str) -> str:
    """Return the path in the pod. A file that is sent to a folder keeps its name."""
    path = f"{mount}/{copy.claim.path}".rstrip("/")
    if copy.claim.is_folder and copy.to_claim and Path(copy.local).is_file():
        path += f"/{Path(copy.local).name}"
    return path


def image_of(chosen: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return the image of the pod.

    Raises:
        BadInput: none is given.
    """
    image: str | None = chosen.image or environment.get("DRUMLINE_IMAGE")
    if not image:
        raise BadInput(
            "no image is given for the pod that mounts the claim; set any image with python3 with"
            " --image or DRUMLINE_IMAGE"
        )
    return image
