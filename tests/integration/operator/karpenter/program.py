"""The real Karpenter with its kwok provider, which makes Nodes without a cloud.

Built from its Go module once, into the cache, with two changes of its source: go.mod asks for no
newer patch of Go than there is, and its two servers listen on loopback only.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.kube import Json, Kube
from tests.operator_process import is_established
from tools.cluster.binaries import Say
from tools.cluster.cache import cache_dir
from tools.cluster.go_modules import build_copy, go_tool, module_copy, replace_in
from tools.cluster.ports import ReservedPorts
from tools.cluster.process import Process, log_path, spawn

VERSION = "1.15.0"
MODULE = "sigs.k8s.io/karpenter"
ROLE = "karpenter"
CRDS = ("pkg/apis/crds", "kwok/apis/crds")


def ensure_karpenter(*, say: Say) -> Path:
    """The folder with the program `karpenter` and its CRDs in `crds`; built where it is missing.

    Raises:
        MissingToolError: no Go toolchain, or the build failed.
    """
    folder = cache_dir() / "bin" / f"karpenter-{VERSION}"
    if folder.exists():
        return folder
    say(f"building Karpenter {VERSION} from its Go module: about 4 min, once")
    with module_copy(MODULE, VERSION) as source:
        running = subprocess.check_output([go_tool(), "env", "GOVERSION"], text=True).strip()
        replace_in(source / "go.mod", r"(?m)^go .*$", f"go {running.removeprefix('go')}")
        replace_in(source / "pkg/operator/operator.go", r'":%d"', '"127.0.0.1:%d"')
        made = source / "made"
        build_copy(source, "./kwok", made / "karpenter")
        (made / "crds").mkdir()
        for crd in (path for crds in CRDS for path in (source / crds).glob("*.yaml")):
            shutil.copy(crd, made / "crds")
        folder.parent.mkdir(parents=True, exist_ok=True)
        made.rename(folder)
    return folder


def start_karpenter(program: Path, *, folder: Path, kubeconfig: Path, types: list[Json]) -> Process:
    """Start it as a process of the cluster in `folder`, with which it ends."""
    file = folder / "instance-types.json"
    file.write_text(json.dumps(types))
    with ReservedPorts() as ports:
        return spawn(
            [program],
            folder=folder,
            role=ROLE,
            env={
                "KUBECONFIG": str(kubeconfig),
                "DISABLE_LEADER_ELECTION": "true",
                "METRICS_PORT": str(ports.take()),
                "HEALTH_PROBE_PORT": str(ports.take()),
                "KARPENTER_SERVICE": "karpenter",
                "SYSTEM_NAMESPACE": "kube-system",
                "LOG_LEVEL": "debug",
                "INSTANCE_TYPES_FILE_PATH": str(file),
            },
        )


def said(folder: Path, message: str) -> list[Json]:
    """The lines of its log with that message."""
    lines = log_path(folder, ROLE).read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in entries if entry.get("message") == message]


def install_crds(kube: Kube, folder: Path) -> None:
    """Karpenter's kinds, and those of its kwok provider."""
    for path in sorted((folder / "crds").glob("*.yaml")):
        crd = yaml.safe_load(path.read_text())
        kube.ensure(crd)
        name = crd["metadata"]["name"]
        kube.wait("customresourcedefinitions", name, None, is_established)


def instance_type(
    name: str,
    resources: Json,
    *,
    price: float,
    zones: Sequence[str],
    capacities: Sequence[str] = ("on-demand", "spot"),
) -> Json:
    """Of each capacity type in each zone; a third of the price as spot."""
    return {
        "name": name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": resources,
        "offerings": [
            {
                "Price": price if capacity == "on-demand" else price / 3,
                "Available": True,
                "Requirements": [
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [capacity]},
                    {"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]},
                ],
            }
            for capacity in capacities
            for zone in zones
        ],
    }
