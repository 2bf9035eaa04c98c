"""A throwaway Kubernetes cluster on this machine: `start`, `load`, `stop`.

From a terminal: `python -m tools.cluster up | status | images | down`.
"""

from tools.cluster.kwok import create_fake_nodes
from tools.cluster.lifecycle import load, start, stop, update_images
from tools.cluster.model import Cluster, ClusterError, ClusterSpec, NodeInfo, Provider
from tools.cluster.volumes import bind_folder, kubectl

__all__ = [
    "Cluster",
    "ClusterError",
    "ClusterSpec",
    "NodeInfo",
    "Provider",
    "bind_folder",
    "create_fake_nodes",
    "kubectl",
    "load",
    "start",
    "stop",
    "update_images",
]
