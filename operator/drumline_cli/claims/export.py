"""Runs `drumline export`: the trainer's own export, in a pod with the job's image and no GPU."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from drumline.lifecycle.manifests.trainer_config import CHECKPOINT_FOLDER, checkpoint_path
from drumline_cli.claims.claim_pod import (
    CONTAINER,
    SCRATCH,
    ClaimPod,
    kubectl,
    remote_command,
    running_pod,
)
from drumline_cli.claims.paths import ClaimPath, claim_path
from drumline_cli.claims.transfer import download
from drumline_cli.cluster_access import chosen_credentials, cluster_client
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput, NotAnswered
from drumline_cli.jobs.command import random_letters, say
from drumline_cli.jobs.follow import read_job
from drumline_cli.jobs.inside import ChosenCluster
from drumline_cli.run.request import pairs
from drumline_contract import BUCKET_VARIABLES

Json = dict[str, Any]

_TARGET: Final = "/target"
_EXPORTED: Final = f"{SCRATCH}/exported"


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Export the checkpoint, and report the folder.

    Raises:
        CommandError: the job has no checkpoint, the cluster refuses, or the export
            fails.
    """
    # Phase 1: checks of the arguments. A pod is created only if they are right.
    target = claim_path(chosen.target)
    more = pairs(chosen.claim, option="--claim", form="NAME=/FOLDER")
    if target is None and Path(chosen.target).is_file():
        raise BadInput(f"{chosen.target} is a file; name a folder")
    # kubectl is needed later. Fail before a pod exists.
    kubectl()
    credentials = chosen_credentials(chosen, environment)
    namespace = chosen.namespace or credentials.namespace
    cluster = ChosenCluster.of(chosen, namespace=namespace)

    async def work() -> str:
        async with cluster_client(credentials) as client:
            job = await read_job(client, job=chosen.job, namespace=namespace)
            kept = checkpoint_of(job, step=chosen.step)
            pod = ClaimPod(
                name=f"drumline-export-{random_letters()}",
                image=image_of(job, chosen, environment),
                claims={
                    # The job's claims are read-only, since the export only reads them.
                    **{folder: (name, True) for name, folder in more},
                    **({CHECKPOINT_FOLDER: (kept.claim, True)} if kept.claim else {}),
                    **({} if target is None else {_TARGET: (target.claim, False)}),
                },
                user=chosen.user,
                pull_secrets=tuple(chosen.pull_secret),
                node=chosen.node or "",
                memory=chosen.memory,
                env=kept.env,
            )
            folder = _EXPORTED if target is None else f"{_TARGET}/{target.path}".rstrip("/")
            async with running_pod(client, pod, namespace=namespace, seconds=chosen.wait, say=say):
                command = export_command(chosen, kept.folder, folder)
                # kubectl blocks, so it runs in a thread, and the pod's wait stays responsive.
                await asyncio.to_thread(_exec, cluster, pod.name, command)
                # A local target needs a copy out of the pod's scratch folder.
                if target is None:
                    run_there = remote_command(cluster, pod.name)
                    await asyncio.to_thread(download, folder, Path(chosen.target), run_there)
            return kept.folder

    checkpoint = asyncio.run(work())
    where: str | ClaimPath = target or chosen.target
    return Output(text=f"exported {checkpoint.rpartition('/')[2]} of {chosen.job} to {where}\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCheckpoint:
    """A checkpoint of a job.

    Attributes:
        claim: claim that holds it. Empty: a bucket holds it.
        folder: folder in the job's pods, or URL in the bucket.
        env: variables with the keys of the bucket.
    """

    claim: str
    folder: str
    env: tuple[Json, ...] = ()


def checkpoint_of(job: Json, *, step: int | None) -> KeptCheckpoint:
    """Return a checkpoint of a job.

    Args:
        job: job as the API server prints it.
        step: step of the checkpoint; None: the newest verified one.

    Raises:
        BadInput: the job keeps no checkpoints.
        NotAnswered: it has none yet.
    """
    metadata, spec = cast("Json", job["metadata"]), cast("Json", job["spec"])
    name = str(metadata["name"])
    checkpoint = cast("Json", spec.get("checkpoint") or {})
    claim, bucket = checkpoint.get("claimName"), checkpoint.get("bucket")
    if not claim and not bucket:
        raise BadInput(f"trainingjob {name} keeps no checkpoints: it has no spec.checkpoint")
    status = cast("Json", job.get("status") or {})
    newest = cast("Json", status.get("checkpoint") or {}).get("step")
    # The status names the newest verified checkpoint.
    chosen = newest if step is None else step
    if not isinstance(chosen, int):
        raise NotAnswered(f"trainingjob {metadata.get('namespace')}/{name} has no checkpoint yet")
    path = checkpoint_path(
        str(checkpoint.get("path") or ""), name=name, uid=str(metadata.get("uid", ""))
    )
    # The folder has eight digits, as the trainer writes it.
    folder = f"{bucket or CHECKPOINT_FOLDER}/{path}/step-{chosen:08d}"
    secret = checkpoint.get("secretName")
    keys = BUCKET_VARIABLES if secret else ()
    return KeptCheckpoint(
        claim=str(claim or ""),
        folder=folder,
        env=tuple(
            {
                "name": key,
                # Some keys, such as a session token, may be absent.
                "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}},
            }
            for key in keys
        ),
    )


def image_of(job: Json, chosen: argparse.Namespace, environment: Mapping[str, str]) -> str:
    """Return the image with the trainer: the named one, or the one that the job runs.

    Args:
        job: the TrainingJob.
        chosen: parsed arguments.
        environment: environment variables.

    Raises:
        BadInput: neither is known.
    """
    status = cast("Json", job.get("status") or {})
    # A template's image may lack the trainer, so only a trainer job's image counts.
    own = status.get("image") if job["spec"].get("trainer") is not None else None
    image = chosen.image or own or environment.get("DRUMLINE_IMAGE")
    if not image:
        raise BadInput("the job names no trainer image; name one with --image")
    return str(image)


def export_command(chosen: argparse.Namespace, checkpoint: str, folder: str) -> list[str]:
    """Return the trainer's command.

    Args:
        chosen: parsed arguments.
        checkpoint: path of the step in the Pod.
        folder: folder to write in the Pod.
    """
    command = ["python3", "-m", "drumline_trainer", "export", checkpoint, folder]
    command += ["--adapter"] if chosen.adapter else []
    command += ["--average"] if chosen.average else []
    return command + ([f"--dtype={chosen.dtype}"] if chosen.dtype else [])


def _exec(cluster: ChosenCluster, pod: str, command: Sequence[str]) -> None:
    """Run a command in the pod; its output is the user's to see.

    Raises:
        NotAnswered: it fails.
    """
    start = [kubectl(), *cluster.options, "exec", pod, f"--container={CONTAINER}", "--"]
    done = subprocess.run([*start, *command], check=False)
    if done.returncode:
        raise NotAnswered(f"the export failed in pod {pod} with exit code {done.returncode}")
