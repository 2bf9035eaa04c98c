"""A pod without a GPU that mounts claims: its manifest, and its life from create to delete.

It is a restricted pod that sleeps until it is deleted. Its deadline ends it in any case.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from drumline.kube import errors, reads, writes
from drumline.kube.client import KubeClient
from drumline.kube.kinds import PODS
from drumline_cli.cluster_access import refusal
from drumline_cli.errors import NotAnswered
from drumline_cli.jobs.inside import ChosenCluster
from drumline_contract import plain

Json = dict[str, Any]

CONTAINER: Final = "files"
SCRATCH: Final = "/scratch"
"""An empty folder of the pod."""
# A day suffices for large copies, and bounds a pod that nobody deletes.
LIFE_SECONDS: Final = 24 * 3600
_PAUSE_SECONDS: Final = 1.0
_ABSENT_CLAIM: Final = re.compile(r'persistentvolumeclaim "[^"]*" not found')
_HOPELESS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}
    | {"CreateContainerError", "RunContainerError", "ErrImageNeverPull"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPod:
    """The contents of a pod.

    Attributes:
        name: name of the pod.
        image: image that contains `python3`.
        claims: mount path -> name of the claim and whether it is read-only.
        user: UID and group of its files; None: the namespace assigns them.
        pull_secrets: names of Secrets for the registry.
        node: node of the pod. Empty: the scheduler chooses.
        memory: limit of its memory.
        env: variables, as in a pod.
    """

    name: str
    image: str
    claims: Mapping[str, tuple[str, bool]]
    user: int | None
    pull_secrets: tuple[str, ...] = ()
    node: str = ""
    memory: str = "512Mi"
    env: tuple[Json, ...] = ()


def manifest(pod: ClaimPod) -> Json:
    """Return the pod."""
    # One volume per claim, even if the claim is mounted twice.
    claims = dict.fromkeys(name for name, _ in pod.claims.values())
    volumes: list[Json] = [
        {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": name}}
        for number, name in enumerate(claims)
    ]
    number_of = {name: number for number, name in enumerate(claims)}
    mounts: list[Json] = [
        {"name": f"claim-{number_of[name]}", "mountPath": path, "readOnly": read_only}
        for path, (name, read_only) in pod.claims.items()
    ]
    # None leaves the identity to the namespace, as on OpenShift.
    identity: Json = {} if pod.user is None else {"runAsUser": pod.user, "runAsGroup": pod.user}
    # fsGroup makes a new volume writable for the user.
    group: Json = {} if pod.user is None else {"fsGroup": pod.user}
    container: Json = {
        "name": CONTAINER,
        "image": pod.image,
        "command": ["python3", "-c", f"import time; time.sleep({LIFE_SECONDS})"],
        "env": [{"name": "HOME", "value": SCRATCH}, *pod.env],
        "volumeMounts": [*mounts, {"name": "scratch", "mountPath": SCRATCH}],
        "resources": {
            "requests": {"cpu": "100m", "memory": "128Mi"},
            # No CPU limit: a copy should use the idle CPUs of its node.
            "limits": {"memory": pod.memory},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": LIFE_SECONDS,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
        "securityContext": {
            "runAsNonRoot": True,
            **identity,
            **group,
            # A large volume would otherwise take minutes to change its groups.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [*volumes, {"name": "scratch", "emptyDir": {}}],
    }
    if pod.node:
        spec["nodeName"] = pod.node
    labels = {"app.kubernetes.io/name": "drumline", "app.kubernetes.io/component": "claim"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": pod.name, "labels": labels},
        "spec": spec,
    }


@asynccontextmanager
async def running_pod(
    client: KubeClient,
    pod: ClaimPod,
    *,
    namespace: str,
    seconds: float,
    say: Callable[[str], None],
) -> AsyncGenerator[None]:
    """Create the pod, wait until it runs, and delete it in the end.

    Args:
        client: sends the requests.
        pod: claim, image and user of the Pod.
        namespace: namespace of the claim.
        seconds: time limit of the start.
        say: prints a line for the user.

    Raises:
        NotAnswered: the cluster refuses it, or it does not run in time.
    """
    what = f"pod {namespace}/{pod.name}"
    try:
        # The names of pods are random, so a conflict is not expected.
        made = await writes.create(client, PODS, body=manifest(pod), namespace=namespace)
    except errors.NotFound:
        raise NotAnswered(f"namespace {namespace!r} does not exist") from None
    except errors.KubeError as error:
        raise NotAnswered(refusal(error, what=what, verb="create")) from None
    try:
        await _wait(client, pod.name, namespace=namespace, seconds=seconds, say=say)
        yield
    # Also after Ctrl-C and errors: a forgotten pod would hold its volume.
    finally:
        try:
            # The uid protects a pod of the same name that somebody else has created.
            await writes.delete(client, PODS, name=pod.name, uid=made.uid, namespace=namespace)
        except errors.NotFound:
            pass
        # A failed deletion must not hide the result of the command.
        except errors.KubeError as error:
            say(f"drumline: {refusal(error, what=what, verb='delete')}; delete it")


async def _wait(
    client: KubeClient,
    name: str,
    *,
    namespace: str,
    seconds: float,
    say: Callable[[str], None],
) -> None:
    last, end = "", time.monotonic() + seconds
    while True:
        try:
            raw = await reads.get_document(client, PODS, name=name, namespace=namespace)
        except errors.NotFound:
            raise NotAnswered(f"pod {namespace}/{name} was deleted") from None
        except errors.KubeError as error:
            raise NotAnswered(refusal(error, what=f"pod {namespace}/{name}")) from None
        status = cast("Json", raw.get("status") or {})
        # Running is enough. The pod has no readiness probe.
        if _runs(status):
            return
        line = waits_for(status)
        # Print a reason only when it changes.
        if line and line != last:
            last = line
            say(f"waiting for pod {name}: {line}")
        # These states need another image or name, so waiting is useless.
        if _is_hopeless(status):
            raise NotAnswered(f"pod {namespace}/{name} cannot start: {line}")
        if time.monotonic() > end:
            raise NotAnswered(
                f"pod {namespace}/{name} does not run after {seconds:.0f} s: {line or 'no reason'};"
                " correct that, or set a longer --wait"
            )
        await asyncio.sleep(_PAUSE_SECONDS)


def waits_for(status: Mapping[str, Any]) -> str:
    """Return why a pod does not run yet, fit for a terminal."""
    for container in status.get("containerStatuses") or ():
        waiting = container.get("state", {}).get("waiting")
        # ContainerCreating is normal for seconds, and says nothing.
        if waiting and waiting.get("reason") != "ContainerCreating":
            return plain(f"{waiting.get('reason')}: {waiting.get('message') or ''}"[:500])
    for condition in status.get("conditions") or ():
        # The scheduler explains here why no node fits.
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return plain(str(condition.get("message") or condition.get("reason") or "")[:500])
    return plain(str(status.get("message") or "")[:500])


def _runs(status: Mapping[str, Any]) -> bool:
    return any(
        "running" in (container.get("state") or {})
        for container in status.get("containerStatuses") or ()
    )


def _is_hopeless(status: Mapping[str, Any]) -> bool:
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    # The scheduler would wait for the claim for ever, and a wrong name never comes to exist.
    if _ABSENT_CLAIM.search(waits_for(status)):
        return True
    return any(
        cast("Json", container.get("state", {}).get("waiting") or {}).get("reason") in _HOPELESS
        for container in status.get("containerStatuses") or ()
    )


def remote_command(cluster: ChosenCluster, pod: str) -> Callable[[Sequence[str]], list[str]]:
    """Return the function from arguments of the remote program to a kubectl command line.

    Raises:
        NotAnswered: kubectl is not installed.
    """
    program = kubectl()
    # The program travels with each call, so the image needs only python3.
    text = Path(__file__).with_name("remote_program.py").read_text(encoding="utf-8")
    start = [program, *cluster.options, "exec", "-i", pod, f"--container={CONTAINER}", "--"]
    return lambda arguments: [*start, "python3", "-c", text, *arguments]


def kubectl() -> str:
    """Return the path of kubectl.

    Raises:
        NotAnswered: it is not installed.
    """
    program = shutil.which("kubectl")
    if program is None:
        raise NotAnswered("kubectl is not in the PATH; install it, because this command uses it")
    return program
