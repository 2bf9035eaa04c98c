"""The pods and the policy of a probe, and what is read of them. Pure.

On each chosen node one pod of the trainer's image writes what it may lock into its termination
message. Two more listen, and a NetworkPolicy forbids every way to the second; the last one tries
both and writes whom it reached: the open one shows that there is a way at all. All are restricted
pods without a token or a GPU, and end by their deadline if nobody deletes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from drumline_api.objects.builtin import ContainerState, Pod
from drumline_cli.doctor.facts import NetworkProbe, NodeProbe
from drumline_contract import plain

Json = dict[str, Any]
M = TypeVar("M")

LABEL: Final = "drumline.dev/probe"
# One port suffices for both listening pods, because each pod has an address of its own.
PORT: Final = 29400
_MAX_MESSAGE: Final = 4096
"""Maximum size of a termination message, from the kubelet."""
_MAX_PROBLEM: Final = 300
_LIMIT_SCRIPT: Final = """\
import json, resource
soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
limit = None if soft == resource.RLIM_INFINITY else soft
open("/dev/termination-log", "w").write(json.dumps({"lockedMemoryBytes": limit}))
"""
_LISTEN_SCRIPT: Final = f"""\
import socket
both = socket.has_dualstack_ipv6()
family = socket.AF_INET6 if both else socket.AF_INET
server = socket.create_server(("", {PORT}), family=family, dualstack_ipv6=both)
while True:
    server.accept()[0].close()
"""
_CONNECT_SCRIPT: Final = f"""\
import json, os, socket, time
def reached(address, *, wanted, seconds):
    # Ends early once it is as wanted: three times in a row for a closed one, whose policy may
    # take a moment until it holds.
    end, closed = time.monotonic() + seconds, 0
    while time.monotonic() < end and closed < 3:
        try:
            socket.create_connection((address, {PORT}), timeout=1).close()
            if wanted:
                return True
            closed = 0
        except OSError:
            closed += not wanted
        time.sleep(0.5)
    return closed < 3 and not wanted
seen = {{
    "reachedOpen": reached(os.environ["OPEN"], wanted=True, seconds=20),
    "reachedClosed": reached(os.environ["CLOSED"], wanted=False, seconds=10),
}}
open("/dev/termination-log", "w").write(json.dumps(seen))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSite:
    """Place and settings of the probe pods.

    Attributes:
        run: names this run's objects, in a label.
        image: image of all pods; has `python3`.
        seconds: after which a pod ends by itself.
        user: whom the programs run as; None: whom the namespace assigns.
        pull_secrets: names of Secrets of the namespace.
    """

    run: str
    image: str
    seconds: int
    user: int | None
    pull_secrets: tuple[str, ...] = ()


def limit_pod(site: ProbeSite, *, number: int, node: str) -> Json:
    """Return a pod that prints how much memory a pod may lock on this node.

    Args:
        site: namespace and image of the probe.
        number: number of the Pod, for its name.
        node: name of the node.
    """
    return _pod(site, name=f"node-{number}", node=node, script=_LIMIT_SCRIPT)


def listening_pod(site: ProbeSite, *, name: str, node: str) -> Json:
    """Accept every connection. `closed` is the name that the policy selects.

    Args:
        site: namespace and image of the probe.
        name: `open` or `closed`.
        node: name of the node.
    """
    return _pod(site, name=name, node=node, script=_LISTEN_SCRIPT)


def connecting_pod(site: ProbeSite, *, node: str, open_at: str, closed_at: str) -> Json:
    """Try the two listening pods, by their addresses.

    Args:
        site: namespace and image of the probe.
        node: name of the node.
        open_at: address of the open Pod.
        closed_at: address of the closed Pod.
    """
    variables = {"OPEN": open_at, "CLOSED": closed_at}
    return _pod(site, name="client", node=node, script=_CONNECT_SCRIPT, variables=variables)


def policy(site: ProbeSite) -> Json:
    """Return a NetworkPolicy that blocks all traffic to the pod `closed`."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": f"drumline-probe-{site.run}", "labels": {LABEL: site.run}},
        "spec": {
            # The policy must not affect other pods, so it selects by the label of this run.
            "podSelector": {"matchLabels": {LABEL: site.run, f"{LABEL}-pod": "closed"}},
            "policyTypes": ["Ingress"],
            # An empty list of rules denies all ingress traffic.
            "ingress": [],
        },
    }


def _pod(
    site: ProbeSite, *, name: str, node: str, script: str, variables: dict[str, str] | None = None
) -> Json:
    container = {
        "name": "probe",
        "image": site.image,
        "command": ["python3", "-c", script],
        "env": [{"name": key, "value": value} for key, value in (variables or {}).items()],
        # Small requests, so that the probe fits on a full node.
        "resources": {
            "requests": {"cpu": "10m", "memory": "32Mi"},
            "limits": {"cpu": "500m", "memory": "128Mi"},
        },
        # These settings satisfy the Pod Security level restricted.
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"drumline-probe-{site.run}-{name}",
            "labels": {LABEL: site.run, f"{LABEL}-pod": name},
        },
        "spec": {
            "nodeName": node,  # past the scheduler: this very node is to be tried
            # The kubelet must not restart a probe, because its message would be lost.
            "restartPolicy": "Never",
            "activeDeadlineSeconds": site.seconds,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # Nodes of a pool are usually tainted, so the probe tolerates every taint.
            "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": secret} for secret in site.pull_secrets],
            "securityContext": {
                "runAsNonRoot": True,
                **({} if site.user is None else {"runAsUser": site.user, "runAsGroup": site.user}),
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
        },
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePod:
    """A pod of a probe as it is now.

    Attributes:
        name: `node-0`, `open`, `closed` or `client`.
        address: address of the pod, once it runs.
        over: it has ended, or its kubelet has said why it cannot start.
        problem: why it did not do its work; empty: it did, or is still at it.
        message: what it wrote.
    """

    name: str
    address: str
    over: bool
    problem: str
    message: str


def gone(name: str) -> ProbePod:
    """Return a pod that is not there any more."""
    return ProbePod(name=name, address="", over=True, problem="the pod was deleted", message="")


# The kubelet retries these errors forever. For a probe they are final.
_HOPELESS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError"}
    | {"CreateContainerError", "RunContainerError", "ErrImageNeverPull"}
)


def probe_pod(raw: bytes) -> ProbePod:
    """Return the fields that are read of a pod.

    Raises:
        msgspec.ValidationError: The document is not a pod.
    """
    pod = msgspec.json.decode(raw, type=Pod)
    # A Pod has one container, so the first status is the only one.
    status = pod.status
    state = status.container_statuses[0].state if status.container_statuses else ContainerState()
    problem = ""
    message = ""
    # Exit code zero with a message is the normal end.
    if state.terminated is not None:
        message = state.terminated.message[:_MAX_MESSAGE]
        if state.terminated.exit_code:
            problem = f"it exited with {state.terminated.exit_code} {state.terminated.reason}"
    elif state.waiting is not None and state.waiting.reason in _HOPELESS:
        problem = f"{state.waiting.reason}: {state.waiting.message}"
    # A Pod can fail before its container starts, for example by its deadline.
    elif status.phase == "Failed":
        problem = f"{status.reason}: {status.message}"
    return ProbePod(
        name=pod.metadata.label(f"{LABEL}-pod"),
        # A Pod keeps its address after it has ended, but nobody listens there.
        address=status.pod_ip if status.phase == "Running" else "",
        over=bool(problem) or state.terminated is not None,
        problem=plain(problem)[:_MAX_PROBLEM],
        message=message,
    )


class _Limit(msgspec.Struct, frozen=True, rename="camel"):
    locked_memory_bytes: int | None


class _Reached(msgspec.Struct, frozen=True, rename="camel"):
    reached_open: bool
    reached_closed: bool


def node_probe(pod: ProbePod, *, pool: str, node: str) -> NodeProbe:
    """Return the result on this node.

    Args:
        pod: the Pod that has ended.
        pool: name of the pool.
        node: name of the node.
    """
    # A timeout usually means that the image is still being pulled.
    if not pod.over:
        return NodeProbe(pool=pool, node=node, problem="it did not finish in time")
    said = _parsed_message(pod, _Limit)
    # An image without Python starts, but its command fails without a message.
    if said is None:
        problem = pod.problem or "it wrote no result: the image must contain python3"
        return NodeProbe(pool=pool, node=node, problem=problem)
    limit = said.locked_memory_bytes
    return NodeProbe(pool=pool, node=node, problem="", locked_memory_bytes=limit)


def network_probe(pod: ProbePod, *, path: str) -> NetworkProbe | None:
    """Return the pods that it reached, or None without a result."""
    said = _parsed_message(pod, _Reached)
    if said is None:
        return None
    return NetworkProbe(
        reached_open=said.reached_open, reached_closed=said.reached_closed, path=path
    )


def _parsed_message(pod: ProbePod, what: type[M]) -> M | None:
    try:
        return msgspec.json.decode(pod.message, type=what)
    except msgspec.DecodeError:
        return None
