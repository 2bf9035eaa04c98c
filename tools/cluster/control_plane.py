"""etcd, API server, controller manager and scheduler, as plain processes.

Two places: on loopback with free ports (no root; several side by side), or in the cluster's own
network namespace, where the API server listens on the service address itself, so that pods reach
it by the ordinary in-cluster address with no kube-proxy. etcd does not sync to disk: its data is
thrown away with the cluster.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tools.cluster.binaries import binary_path
from tools.cluster.certificates import Authority, new_signing_key, write_kubeconfig
from tools.cluster.ports import LOOPBACK, ReservedPorts
from tools.cluster.process import Process, spawn, wait_until
from tools.cluster.rest import Api

SERVICE_ADDRESS = "10.96.0.1"
"""The API server as pods know it."""
_FAKE_NODE_SECONDS = 86_400
"""Fake nodes send no heartbeats. They stay ready for longer than any run on a busy machine."""
_HANGING_SECONDS = 600
"""Nothing that still starts takes as long on any machine; what died is seen at once."""


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


def loopback(ports: ReservedPorts) -> Place:
    """On this machine's loopback, on ports that are to stay reserved until it is ready."""
    return Place(
        netns=None,
        address=LOOPBACK,
        api_port=ports.take(),
        etcd_port=ports.take(),
        peer_port=ports.take(),
    )


def namespace(netns: str) -> Place:
    """Inside the network namespace `netns`, where every port is free."""
    return Place(netns=netns, address=SERVICE_ADDRESS, api_port=443, etcd_port=2379, peer_port=2380)


def start_api_server(
    folder: Path,
    *,
    place: Place,
    authority: Authority,
    binaries: dict[str, Path],
    fake_nodes: bool,
    flags: tuple[str, ...] = (),
) -> list[Process]:
    """Start etcd and the API server, which waits for it by itself.

    Args:
        folder: the cluster's.
        place: addresses and ports.
        authority: signs the certificates.
        binaries: the programs by name.
        fake_nodes: whether nodes are fake, and born Ready.
        flags: further flags of the API server.
    """
    keys = folder / "pki"
    keys.mkdir(mode=0o700)
    _write_keys(keys, authority)
    commands = {
        "etcd": _etcd(folder, place),
        "kube-apiserver": [*_api_server(keys, place, fake_nodes=fake_nodes), *flags],
    }
    return _spawn(commands, folder=folder, place=place, binaries=binaries)


def start_controllers(
    folder: Path, *, place: Place, authority: Authority, binaries: dict[str, Path], fake_nodes: bool
) -> list[Process]:
    """Start controller manager and scheduler; the API server is ready.

    Beside it the controller manager would end after ten seconds without an answer, which a busy
    machine takes. With `fake_nodes`, nodes are given ten minutes before they count as lost: on a
    busy machine KWOK renews thousands of leases late, and nodes that come and go would be all that
    happens.
    """
    keys = folder / "pki"
    for name in ("kube-controller-manager", "kube-scheduler"):
        write_kubeconfig(
            keys / f"{name}.kubeconfig",
            server=place.server,
            authority=authority,
            pair=authority.issue(common_name=f"system:{name}"),
        )
    commands = {
        "kube-controller-manager": _controller_manager(
            keys, grace_seconds=_FAKE_NODE_SECONDS if fake_nodes else 16
        ),
        "kube-scheduler": _scheduler(keys),
    }
    return _spawn(commands, folder=folder, place=place, binaries=binaries)


def start_scheduler(folder: Path, *, gates: str = "") -> Process:
    """Start another kube-scheduler in place of a killed one, on a cluster on loopback.

    Args:
        folder: the cluster's.
        gates: feature gates, as in `GangScheduling=true`.
    """
    flags = _scheduler(folder / "pki") + ([f"--feature-gates={gates}"] if gates else [])
    return spawn([binary_path("kube-scheduler"), *flags], folder=folder, role="kube-scheduler")


def wait_for_api_server(folder: Path, *, kubeconfig: Path, needs: list[Process]) -> None:
    """Return when it is ready.

    Raises:
        ClusterError: a process it needs died, or it took so long that it hangs.
    """
    _wait_for("API server ready", "/readyz", folder=folder, kubeconfig=kubeconfig, needs=needs)


def wait_for_controllers(folder: Path, *, kubeconfig: Path, needs: list[Process]) -> None:
    """Return when pods can be created: the default service account is there.

    Raises:
        ClusterError: a process it needs died, or it took so long that it hangs.
    """
    path = "/api/v1/namespaces/default/serviceaccounts/default"
    _wait_for("default service account", path, folder=folder, kubeconfig=kubeconfig, needs=needs)


def _wait_for(
    what: str, path: str, *, folder: Path, kubeconfig: Path, needs: list[Process]
) -> None:
    with Api(kubeconfig) as api:
        wait_until(
            lambda: api.answers(path),
            what=what,
            timeout_seconds=_HANGING_SECONDS,
            folder=folder,
            needs=needs,
        )


def _spawn(
    commands: dict[str, list[str]], *, folder: Path, place: Place, binaries: dict[str, Path]
) -> list[Process]:
    return [
        spawn([binaries[name], *flags], folder=folder, role=name, netns=place.netns)
        for name, flags in commands.items()
    ]


def _write_keys(keys: Path, authority: Authority) -> None:
    names = [LOOPBACK, SERVICE_ADDRESS, "localhost", "kubernetes", "kubernetes.default.svc"]
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
    clients = f"http://{LOOPBACK}:{place.etcd_port}"
    peers = f"http://{LOOPBACK}:{place.peer_port}"
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
        f"--etcd-servers=http://{LOOPBACK}:{place.etcd_port}",
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
        # 1.37 serves them by itself; nobody but Drumline acts on them here
        "--feature-gates=DRADeviceTaintRules=true",
        "--runtime-config=resource.k8s.io/v1beta2=true",
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
