"""The real Kueue with its webhooks, built from its Go module and run on loopback."""

from __future__ import annotations

import base64
import shutil
import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import yaml

from tests.kube import Json, Kube
from tests.operator_process import is_established
from tests.patience import HANG_SECONDS
from tools.cluster import Cluster
from tools.cluster.binaries import Say
from tools.cluster.cache import cache_dir
from tools.cluster.certificates import Authority, new_authority
from tools.cluster.go_modules import build_copy, module_copy, replace_in
from tools.cluster.ports import ReservedPorts
from tools.cluster.process import kill, log_path, spawn, wait_until

VERSION = "0.17.0"
MODULE = "sigs.k8s.io/kueue"
ROLE = "kueue"
SYSTEM_NAMESPACE = "kueue-system"
_CRDS = "config/components/crd/bases"
_WEBHOOKS = "config/components/webhook/manifests.yaml"
_CERTIFICATES_VARIABLE = "KUEUE_METRICS_CERTIFICATES"
"""Replaces a folder of the machine that only a container may have."""
_OTHER_NAMESPACES: Json = {
    "matchExpressions": [
        {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", SYSTEM_NAMESPACE],
        }
    ]
}


def ensure_kueue(*, say: Say) -> Path:
    """Return the folder with the program `kueue`, its CRDs and its webhooks; built if missing.

    Raises:
        MissingToolError: there is no Go toolchain, or the build failed.
    """
    folder = cache_dir() / "bin" / f"kueue-{VERSION}"
    if folder.exists():
        return folder
    say(f"building Kueue {VERSION} from its Go module: about 10 min, once")
    with module_copy(MODULE, VERSION) as source:
        replace_in(
            source / "cmd/kueue/main.go",
            r'"/etc/kueue/metrics/certs"',
            f'os.Getenv("{_CERTIFICATES_VARIABLE}")',
        )
        made = source / "made"
        build_copy(source, "./cmd/kueue", made / "kueue")
        shutil.copytree(source / _CRDS, made / "crds")
        shutil.copy(source / _WEBHOOKS, made / "webhooks.yaml")
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)
    return folder


def install_crds(kube: Kube, folder: Path) -> None:
    """Create Kueue's kinds and the namespace of its controller."""
    kube.ensure({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM_NAMESPACE}})
    for path in sorted((folder / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        # conversion to old versions takes a Service; nothing here asks for them
        crd["spec"].pop("conversion", None)
        kube.ensure(crd)
        name = crd["metadata"]["name"]
        kube.wait("customresourcedefinitions", name, None, is_established)


@contextmanager
def running_kueue(
    kube: Kube, cluster: Cluster, scratch: Path, *, manage_all: bool = False
) -> Generator[None]:
    """Run Kueue until the block ends, with its webhooks in force.

    Args:
        kube: the API server.
        cluster: whose folder the process belongs to.
        scratch: takes certificates and configuration.
        manage_all: Kueue's `manageJobsWithoutQueueName`.
    """
    folder = ensure_kueue(say=print)
    install_crds(kube, folder)
    authority = new_authority()
    configuration = {"manageJobsWithoutQueueName": manage_all}
    port = start_kueue(cluster, scratch, authority=authority, configuration=configuration)
    hooks = _webhooks(folder, url=f"https://127.0.0.1:{port}", authority=authority.pem)
    try:
        for hook in hooks:
            kube.ensure(hook)
        yield
    finally:
        for hook in hooks:
            plural = hook["kind"].lower() + "s"
            kube.delete(plural, hook["metadata"]["name"])
        kill(cluster.folder, role_prefix=ROLE)
        print(log_path(cluster.folder, ROLE).read_text()[-3000:])


def start_kueue(
    cluster: Cluster, scratch: Path, *, authority: Authority, configuration: Json
) -> int:
    """Start Kueue, whose kinds are there, and return when it listens.

    Args:
        cluster: whose folder the process belongs to.
        scratch: takes certificates and configuration.
        authority: signs the certificates of its webhooks.
        configuration: further settings.

    Returns:
        The port of its webhooks, which nobody calls until they are registered.
    """
    folder = ensure_kueue(say=print)
    pair = authority.issue(common_name="kueue", names=["127.0.0.1"])
    (scratch / "tls.crt").write_bytes(pair.certificate)
    (scratch / "tls.key").write_bytes(pair.key)
    with ReservedPorts() as ports:
        port, health, metrics = ports.take(), ports.take(), ports.take()
        config = scratch / "kueue.yaml"
        settings = _configuration(scratch, port, health, metrics)
        config.write_text(yaml.safe_dump({**settings, **configuration}))
        process = spawn(
            [
                folder / "kueue",
                f"--config={config}",
                "--feature-gates=VisibilityOnDemand=false",  # its port is open to all
            ],
            folder=cluster.folder,
            role=ROLE,
            env={
                "KUBECONFIG": str(cluster.kubeconfig),
                _CERTIFICATES_VARIABLE: str(scratch),
            },
        )
    wait_until(
        lambda: _listens(port),
        what="Kueue's webhooks",
        timeout_seconds=HANG_SECONDS,
        folder=cluster.folder,
        needs=[process],
    )
    return port


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _configuration(certificates: Path, port: int, health: int, metrics: int) -> Json:
    return {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": SYSTEM_NAMESPACE,
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "metrics": {"bindAddress": f"127.0.0.1:{metrics}"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(certificates)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job", "pod"]},
    }


def _webhooks(folder: Path, *, url: str, authority: bytes) -> list[Json]:
    """Kueue's own configurations with an address in place of the Service."""
    bundle = base64.b64encode(authority).decode()
    result: list[Json] = []
    for document in yaml.safe_load_all((folder / "webhooks.yaml").read_text()):
        kept: list[Json] = []
        for hook in document["webhooks"]:
            groups = {group for rule in hook["rules"] for group in rule["apiGroups"]}
            if not groups <= {"", "batch", "kueue.x-k8s.io"}:
                continue  # kinds that nobody creates here
            path = hook["clientConfig"]["service"]["path"]
            hook["clientConfig"] = {"url": url + path, "caBundle": bundle}
            if groups == {""}:
                hook["namespaceSelector"] = _OTHER_NAMESPACES
            kept.append(hook)
        result.append({**document, "webhooks": kept})
    return result
