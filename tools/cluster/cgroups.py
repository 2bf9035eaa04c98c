"""The control groups of a cluster's pods: /drumline.NAME/node-i in every hierarchy.

A group of its own for each node keeps the kubelets apart and lets `down` find what a killed
kubelet left. On cgroup v1 every controller is a hierarchy; on v2 there is one, and its
controllers have to be handed down.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

_ROOT = Path("/sys/fs/cgroup")


def group(name: str, node: str) -> str:
    """The node's group, as the kubelet's `cgroupRoot` wants it."""
    return f"/drumline.{name}/{node}"


def create(name: str, node: str) -> None:
    """Make the node's group in every hierarchy."""
    for hierarchy in _hierarchies():
        parent = hierarchy / f"drumline.{name}"
        (parent / node).mkdir(parents=True, exist_ok=True)
        if (hierarchy / "cgroup.controllers").exists():
            _hand_down(hierarchy, parent, parent / node)
        if (hierarchy / "cpuset.cpus").exists():
            _inherit_cpuset(hierarchy, parent, parent / node)


def delete(name: str) -> None:
    """Remove the cluster's groups; no process may be in them any more."""
    for hierarchy in _hierarchies():
        top = hierarchy / f"drumline.{name}"
        if top.exists():
            for folder in sorted((each for each in top.rglob("*") if each.is_dir()), reverse=True):
                folder.rmdir()
            top.rmdir()


def pids_of_pod(name: str, pod_uid: str) -> list[int]:
    """Every process in the containers of a pod, wherever in the cluster it runs."""
    for hierarchy in _hierarchies():
        for folder in (hierarchy / f"drumline.{name}").glob(f"**/pod{pod_uid}"):
            files = folder.rglob("cgroup.procs")
            return sorted(int(pid) for file in files for pid in file.read_text().split())
    return []


def leftovers(name: str) -> list[Path]:
    """Groups that `delete` would remove."""
    return [top for each in _hierarchies() if (top := each / f"drumline.{name}").exists()]


def _hierarchies() -> list[Path]:
    if (_ROOT / "cgroup.controllers").exists():
        return [_ROOT]
    return [each for each in _ROOT.iterdir() if each.is_dir() and not each.is_symlink()]


def _hand_down(*groups: Path) -> None:
    for folder in groups:
        available = (folder / "cgroup.controllers").read_text().split()
        switch = " ".join(f"+{controller}" for controller in available)
        with contextlib.suppress(OSError):  # the root's own processes do not allow all of them
            (folder / "cgroup.subtree_control").write_text(switch)


def _inherit_cpuset(hierarchy: Path, *groups: Path) -> None:
    for folder in groups:
        for file in ("cpuset.cpus", "cpuset.mems"):
            (folder / file).write_text((hierarchy / file).read_text())
