"""etcd, API server, controller manager and scheduler, as plain processes.

Two places: on loopback with free ports (no root; several side by side), or in the cluster's own
network namespace, where the API server listens on the service address itself, so that pods reach
it by the ordinary in-cluster address with no kube-proxy. etcd does not sync to disk: its data is
thrown away with the cluster.
"""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.certificates import Authority, new_signing_key, write_kubeconfig
from tests.cluster.model import ClusterError
from tests.cluster.process import Process, spawn, wait_until
from tests.cluster.rest import Api

SERVICE_ADDRESS = "10.96.0.1"
"""The API server as pods know it."""

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a control plane listens."""

    netns: str | None
    address: str
    api_port: int
    etcd_port: int
    peer_port: int

    @property
    def server(self) -> str:
        """The API server's URL, as seen from this place."""
        return f"https://{self.address}:{self.api_port}"


def loopback() -> Place:
    """On this machine's loopback, on ports nobody has."""
    api, etcd, peer = free_ports(3)
    return Place(netns=None, address=_LOOPBACK, api_port=api, etcd_port=etcd, peer_port=peer)


def namespace(netns: str) -> Place:
    """Inside the network namespace `netns`, where every port is free."""
    return Place(netns=netns, address=SERVICE_ADDRESS, api_port=443, etcd_port=2379, peer_port=2380)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, below the range the kernel hands to outgoing connections."""
    chosen: list[int] = []
    candidates = random.SystemRandom().sample(range(20_000, 32_000), 500)
    for port in candidates:
        with socket.socket() as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
        chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise ClusterError("no free TCP ports between 20000 and 32000 on 127.0.0.1")


def start_control_plane(
    folder: Path,
    *,
    place: Place,
    authority: Authority,
    binaries: dict[str, Path],
    fake_nodes: bool,
) -> list[Process]:
    """Start all four at once; each waits for the one it needs by itself.

    With `fake_nodes`, nodes are given ten minutes before they count as lost: on a busy machine
    KWOK renews thousands of leases late, and nodes that come and go would be all that happens.
    """
    keys = folder / "pki"
    keys.mkdir(mode=0o700)
    _write_keys(keys, authority)
    for name in ("kube-controller-manager", "kube-scheduler"):
        write_kubeconfig(
            keys / f"{name}.kubeconfig",
            server=place.server,
            authority=authority,
            pair=authority.issue(common_name=f"system:{name}"),
        )
    commands = {
        "etcd": _etcd(folder, place),
        "kube-apiserver": _api_server(keys, place, fake_nodes=fake_nodes),
        "kube-controller-manager": _controller_manager(
            keys, grace_seconds=600 if fake_nodes else 16
        ),
        "kube-scheduler": _scheduler(keys),
    }
    return [
        spawn([binaries[name], *flags], folder=folder, role=name, netns=place.netns)
        for name, flags in commands.items()
    ]


def wait_for_control_plane(folder: Path, *, kubeconfig: Path, needs: list[Process]) -> None:
    """Return when pods can be created: ready, and the default service account is there.

    Raises:
        ClusterError: a process died, or it took over two minutes.
    """
    with Api(kubeconfig) as api:
        for what, path in (
            ("API server ready", "/readyz"),
            ("default service account", "/api/v1/namespaces/default/serviceaccounts/default"),
        ):
            wait_until(
                lambda path=path: api.answers(path),
                what=what,
                timeout_seconds=120,
                folder=folder,
                needs=needs,
            )


def _write_keys(keys: Path, authority: Authority) -> None:
    names = [_LOOPBACK, SERVICE_ADDRESS, "localhost", "kubernetes", "kubernetes.default.svc"]
    (keys / "ca.crt").write_bytes(authority.pem)
    authority.issue(common_name="kube-apiserver", names=names).write(keys, "apiserver")
    authority.issue(common_name="kube-apiserver", organization="system:masters").write(
        keys, "kubelet-client"
    )
    private, public = new_signing_key()
    (keys / "service-accounts.key").touch(mode=0o600)
    (keys / "service-accounts.key").write_bytes(private)
    (keys / "service-accounts.pub").write_bytes(public)


def _etcd(folder: Path, place: Place) -> list[str]:
    clients = f"http://{_LOOPBACK}:{place.etcd_port}"
    peers = f"http://{_LOOPBACK}:{place.peer_port}"
    return [
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
    ]


def _api_server(keys: Path, place: Place, *, fake_nodes: bool) -> list[str]:
    # the plugin taints every new node not-ready: one more write each, and fake ones are born Ready
    without = ["--disable-admission-plugins=TaintNodesByCondition"] if fake_nodes else []
    return [
        *without,
        f"--etcd-servers=http://{_LOOPBACK}:{place.etcd_port}",
        f"--bind-address={place.address}",
        f"--advertise-address={place.address}",
        f"--secure-port={place.api_port}",
        # a loopback address may not be an endpoint; in the namespace nobody else serves it
        f"--endpoint-reconciler-type={'none' if place.netns is None else 'lease'}",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        f"--client-ca-file={keys / 'ca.crt'}",
        f"--tls-cert-file={keys / 'apiserver.crt'}",
        f"--tls-private-key-file={keys / 'apiserver.key'}",
        f"--service-account-key-file={keys / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={keys / 'service-accounts.key'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--kubelet-client-certificate={keys / 'kubelet-client.crt'}",
        f"--kubelet-client-key={keys / 'kubelet-client.key'}",
        # node names do not resolve here: logs and exec go by address
        "--kubelet-preferred-address-types=InternalIP",
        f"--cert-dir={keys}",
    ]


def _controller_manager(keys: Path, *, grace_seconds: int) -> list[str]:
    config = keys / "kube-controller-manager.kubeconfig"
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        f"--service-account-private-key-file={keys / 'service-accounts.key'}",
        f"--root-ca-file={keys / 'ca.crt'}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        # a dead real node is seen in seconds: tests wait for it
        "--node-monitor-period=1s",
        f"--node-monitor-grace-period={grace_seconds}s",
    ]


def _scheduler(keys: Path) -> list[str]:
    config = keys / "kube-scheduler.kubeconfig"
    return [
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
    ]
