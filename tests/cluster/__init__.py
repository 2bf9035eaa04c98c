"""A throwaway Kubernetes cluster on this machine: `start`, `load`, `stop`.

From a terminal: `python -m tests.cluster up | status | images | down`.
"""

from tests.cluster.kwok import create_fake_nodes
from tests.cluster.lifecycle import load, start, stop, update_images
from tests.cluster.model import Cluster, ClusterError, ClusterSpec, NodeInfo, Provider
from tests.cluster.volumes import bind_folder, kubectl

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
