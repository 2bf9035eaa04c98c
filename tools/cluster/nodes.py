"""Real nodes: kubelet, containerd and device plugin, each node in namespaces of its own.

What a machine like a build container lacks is asked for less: no raising of OOM scores, no
limits on the node as a whole, cgroup v1 accepted. Pods get their limits as anywhere.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tools.cluster import cgroups
from tools.cluster.binaries import binary_path
from tools.cluster.certificates import Authority, write_kubeconfig
from tools.cluster.model import Cluster, ClusterError, NodeInfo
from tools.cluster.process import Process, find, kill, log_path, mark, spawn
from tools.cluster.seed import NO_COLLECTOR

SANDBOX_IMAGE = "drumline/base:dev"
"""What holds a pod's namespaces open: the base image, which sleeps by default."""

_HERE = Path(__file__).parent
# A kubelet insists on these and would set them for the whole machine: it finds files that say so.
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


def start_node(
    node: NodeInfo, *, cluster_name: str, folder: Path, server: str, authority: Authority
) -> Process:
    """Write the node's files and start it; its network must exist."""
    for part in ("var-lib/kubelet", "var-log", "cni", "sysctl"):
        (node.folder / part).mkdir(parents=True, exist_ok=True)
    for name, value in _SYSCTLS.items():
        _sysctl_file(node, name).write_text(f"{value}\n")
    cgroups.create(cluster_name, node.name)
    write_kubeconfig(
        node.folder / "kubeconfig",
        server=server,
        authority=authority,
        pair=authority.issue(common_name=f"system:node:{node.name}", organization="system:nodes"),
    )
    (node.folder / "ca.crt").write_bytes(authority.pem)
    (node.folder / "resolv.conf").write_text("")  # no name resolves: no packet leaves
    (node.folder / "containerd.toml").write_text(_containerd_config(node))
    _write_json(node.folder / "kubelet.json", _kubelet_config(node, cluster_name))
    _write_json(node.folder / "cni" / "10-pods.conflist", _cni_config(node))
    _write_json(_devices_file(node), dict.fromkeys(gpu_ids(node), "Healthy"))
    _write_json(node.folder / "plan.json", _plan(node, folder))
    return boot(node, folder=folder)


def boot(node: NodeInfo, *, folder: Path) -> Process:
    """Start the node's first process in namespaces of its own; also after `power_off`."""
    # left by an earlier life: the plugin would register there before the kubelet listens
    (node.folder / "var-lib/kubelet/device-plugins/kubelet.sock").unlink(missing_ok=True)
    return spawn(
        [
            *("/usr/bin/unshare", "--pid", "--fork", "--kill-child", "--ipc", "--uts"),
            *("--mount", "--propagation=slave", "--"),
            *("/usr/bin/env", *_variables(mark(folder, f"{node.name}/init"))),
            *(sys.executable, "-I", _HERE / "machine.py", node.folder / "plan.json"),
        ],
        folder=folder,
        role=f"{node.name}/machine",
        netns=node.netns,
    )


def power_off(node: NodeInfo, *, folder: Path) -> None:
    """Kill the node: kubelet, containerd and every container at once, as a power cut would."""
    kill(folder, role_prefix=f"{node.name}/")


def import_images(
    node: NodeInfo, archive: Path, *, folder: Path, mirror: str | None = None
) -> None:
    """Load an archive into the containerd of a node that runs.

    Args:
        node: it runs.
        archive: of images.
        folder: the cluster's.
        mirror: the repository whose image it is, for an archive that names tags alone; the image
            has that name by its digest, too.

    Raises:
        ClusterError: containerd refused it.
    """
    pid = _pid_of(f"{node.name}/init", folder)
    command = ["nsenter", f"--target={pid}", "--mount", "--", "ctr", "--namespace=k8s.io"]
    command += ["images", "import"]
    command += [] if mirror is None else ["--base-name", mirror, "--digests"]
    command += [str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ClusterError(f"{node.name} cannot import {archive}: {done.stderr.strip()}")
    note_images(node, archive)


def note_images(node: NodeInfo, archive: Path) -> None:
    """Remember which images the node has."""
    (node.folder / "images").write_text(archive.stem)


def has_images(node: NodeInfo, archive: Path) -> bool:
    """Whether these are the images the node has."""
    note = node.folder / "images"
    return note.exists() and note.read_text() == archive.stem


def gpu_ids(node: NodeInfo) -> list[str]:
    """The names of the node's devices."""
    return [f"GPU-{node.name}-{index}" for index in range(node.gpus)]


def set_gpu_health(cluster: Cluster, node: NodeInfo, gpu: str, *, healthy: bool) -> None:
    """Make the device plugin report a device as broken, or well again."""
    file = _devices_file(node)
    health = json.loads(file.read_text())
    if gpu not in health:
        raise ClusterError(f"{node.name} has no device {gpu}, only {', '.join(health)}")
    health[gpu] = "Healthy" if healthy else "Unhealthy"
    _write_json(file, health)
    os.kill(_pid_of(f"{node.name}/device-plugin", cluster.folder), signal.SIGHUP)


def offer_gpus(cluster: Cluster, node: NodeInfo, count: int) -> None:
    """Make the device plugin offer so many healthy devices; `node.gpus` of them are the usual."""
    names = [f"GPU-{node.name}-{index}" for index in range(count)]
    _write_json(_devices_file(node), dict.fromkeys(names, "Healthy"))
    os.kill(_pid_of(f"{node.name}/device-plugin", cluster.folder), signal.SIGHUP)


@contextmanager
def other_devices(cluster: Cluster, node: NodeInfo, *, resource: str, count: int) -> Iterator[None]:
    """A second device plugin on a node, of another vendor: it offers so many of its resource.

    The kubelet goes on to name the resource afterwards, with no healthy device.
    """
    role = f"{node.name}/plugin-{resource.replace('/', '-')}"
    file = node.folder / f"{resource.replace('/', '-')}.json"
    _write_json(file, {f"{resource}-{index}": "Healthy" for index in range(count)})
    pid = _pid_of(f"{node.name}/init", cluster.folder)
    spawn(
        [
            *("/usr/bin/nsenter", f"--target={pid}", "--mount", "--"),
            *(sys.executable, _HERE / "device_plugin.py", file, resource),
        ],
        folder=cluster.folder,
        role=role,
    )
    try:
        yield
    finally:
        kill(cluster.folder, role_prefix=role)


@contextmanager
def dra_driver(cluster: Cluster, node: NodeInfo, *, name: str) -> Iterator[Path]:
    """A DRA driver on a node; yields the log of what its kubelet asked of it."""
    role, log = f"{node.name}/dra-{name}", node.folder / f"dra-{name}.log"
    log.write_text("")
    pid = _pid_of(f"{node.name}/init", cluster.folder)
    spawn(
        [
            *("/usr/bin/nsenter", f"--target={pid}", "--mount", "--"),
            *(sys.executable, _HERE / "dra_driver.py", name, log),
        ],
        folder=cluster.folder,
        role=role,
    )
    try:
        yield log
    finally:
        kill(cluster.folder, role_prefix=role)


def _pid_of(role: str, folder: Path) -> int:
    pids = [each.pid for each in find(folder) if each.role == role]
    if not pids:
        raise ClusterError(f"{role} does not run; its log is {log_path(folder, role)}")
    return pids[0]


def _plan(node: NodeInfo, folder: Path) -> dict[str, Any]:
    commands = {
        "containerd": ["/usr/bin/containerd", "--config", node.folder / "containerd.toml"],
        "kubelet": [
            binary_path("kubelet"),
            f"--config={node.folder / 'kubelet.json'}",
            f"--kubeconfig={node.folder / 'kubeconfig'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--node-labels={','.join(_variables(_labels(node)))}",
        ],
        "device-plugin": [sys.executable, _HERE / "device_plugin.py", _devices_file(node)],
    }
    daemons = [
        {
            "argv": [str(word) for word in argv],
            "env": mark(folder, f"{node.name}/{name}"),
            "log": str(log_path(folder, f"{node.name}/{name}")),
        }
        for name, argv in commands.items()
    ]
    binds = {
        str(node.folder / "var-lib"): "/var/lib",
        str(node.folder / "var-log"): "/var/log",
    } | {str(_sysctl_file(node, name)): f"/proc/sys/{name}" for name in _SYSCTLS}
    return {"binds": binds, "daemons": daemons}


def _labels(node: NodeInfo) -> dict[str, str]:
    """The node's rack, and what GPU Feature Discovery would say."""
    return {
        "drumline.dev/rack": node.rack,
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": str(node.gpus),
    }


def _kubelet_config(node: NodeInfo, cluster_name: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {"x509": {"clientCAFile": str(node.folder / "ca.crt")}},
        "healthzPort": 0,
        "failCgroupV1": False,
        "failSwapOn": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.group(cluster_name, node.name),
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "evictionHard": {
            "memory.available": "50Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "1%",
        },
        "imageGCHighThresholdPercent": 100,
        "maxPods": 110,
        "podPidsLimit": 512,  # so that what a pod forks is its own trouble
        "serializeImagePulls": False,
        "nodeStatusUpdateFrequency": "4s",
        "nodeStatusReportFrequency": "20s",
        "syncFrequency": "10s",
        # no DNS runs: a name fails at once, without the event a missing clusterDNS would cause
        "clusterDNS": ["127.0.0.1"],
        "clusterDomain": "cluster.local",
        "resolvConf": str(node.folder / "resolv.conf"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "registerNode": True,
    }


def _containerd_config(node: NodeInfo) -> str:
    return f"""\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.internal.v1.opt"]

[grpc]
address = "/run/containerd/containerd.sock"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{SANDBOX_IMAGE}"
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni_folder()}"
conf_dir = "{node.folder / "cni"}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
{NO_COLLECTOR}"""


def cni_folder() -> Path:
    """Where the network plugins are installed.

    Raises:
        ClusterError: nowhere.
    """
    for folder in CNI_FOLDERS:
        if (folder / "bridge").exists():
            return folder
    raise ClusterError("no CNI plugins: install containernetworking-plugins")


def _cni_config(node: NodeInfo) -> dict[str, Any]:
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "ipMasq": False,
                "ipam": {
                    "type": "host-local",
                    "dataDir": "/run/cni",
                    "ranges": [[{"subnet": node.pod_cidr}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def _devices_file(node: NodeInfo) -> Path:
    return node.folder / "devices.json"


def _sysctl_file(node: NodeInfo, name: str) -> Path:
    return node.folder / "sysctl" / name.replace("/", ".")


def _variables(values: dict[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _write_json(path: Path, content: Any) -> None:
    staged = path.with_suffix(".new")
    staged.write_text(json.dumps(content, indent=1))
    staged.rename(path)
