"""The environment of a pod: variables, ports, paths."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

AGENT_PORT: Final = 29400
"""TCP port of an agent's HTTP API on the pod's address."""
STORE_PORT: Final = 29500
"""TCP port of the rendezvous store (torch TCPStore), served beside the agent of the lowest index.
The store of each attempt has a port of its own: a pod takes STORE_PORT and the STORE_PORTS - 1
above it in turn, and the leader sends the others its port."""
STORE_PORTS: Final = 64
SIGNATURE_HEADER: Final = "X-Drumline-Signature"
GANG_FOLDER: Final = "/var/run/drumline/gang"
"""Folder in a pod with a custom template: `hosts` (mounted over /etc/hosts), `hostfile` (for
mpirun)."""
TOKEN_FILE: Final = "/var/run/drumline/token/token"  # noqa: S105 - a path, not a secret
TOKEN_FILE_VARIABLE: Final = "DRUMLINE_TOKEN_FILE"  # noqa: S105 - a variable's name, not a secret
"""Names another file outside of pods."""


class Env(StrEnum):
    """Environment variables of a pod made by the operator."""

    NAMESPACE = "DRUMLINE_NAMESPACE"
    JOB = "DRUMLINE_JOB"
    JOB_UID = "DRUMLINE_JOB_UID"
    POD_UID = "DRUMLINE_POD_UID"
    POD_IP = "DRUMLINE_POD_IP"
    ROLE = "DRUMLINE_ROLE"
    """Name of the role of a pod without ranks."""
    ROLE_INDEX = "DRUMLINE_ROLE_INDEX"
    """Index of a pod within its role, from 0."""
    INDEX = "DRUMLINE_INDEX"
    """Index of this pod (node) in its gang, 0..nodes-1."""
    GPUS_PER_NODE = "DRUMLINE_GPUS_PER_NODE"
    """Ranks in this pod: one process per GPU."""
    GENERATION = "DRUMLINE_GENERATION"
    CONFIG = "DRUMLINE_CONFIG"
    """The trainer's whole configuration as JSON (`config.TrainerConfig`)."""
    CHECKPOINT_FOLDER = "DRUMLINE_CHECKPOINT_FOLDER"
    """Folder shared by all pods of the job; empty where the job has no durable storage."""
    LAUNCH = "DRUMLINE_LAUNCH"
    """`LaunchSettings` as JSON, for a template that an agent supervises."""
    CODE_DIGEST = "DRUMLINE_CODE_DIGEST"
    """Digest of the job's code (`code_archive`). Unset if the image has the code."""
    GRACE_SECONDS = "DRUMLINE_GRACE_SECONDS"
    """The pod's terminationGracePeriodSeconds; 30 where it is not said."""
