"""Names that both sides know: ports, paths, variables, exit codes, names of pods and hosts."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import Final

AGENT_PORT: Final = 29400
"""TCP port of an agent's HTTP API on the pod's address."""
STORE_PORT: Final = 29500
"""TCP port of the rendezvous store (torch TCPStore), served beside the agent of the lowest index.
The store of each attempt has a port of its own: a pod takes STORE_PORT and the STORE_PORTS - 1
above it in turn, and the leader tells the others which."""
STORE_PORTS: Final = 64
SIGNATURE_HEADER: Final = "X-Drumline-Signature"
GANG_FOLDER: Final = "/var/run/drumline/gang"
"""Where a pod of one's own finds `hosts` (mounted over /etc/hosts) and `hostfile` (for mpirun)."""
TOKEN_FILE: Final = "/var/run/drumline/token/token"  # noqa: S105 - a path, not a secret


class Env(StrEnum):
    """Environment variables of a pod made by the operator."""

    NAMESPACE = "DRUMLINE_NAMESPACE"
    JOB = "DRUMLINE_JOB"
    JOB_UID = "DRUMLINE_JOB_UID"
    POD_UID = "DRUMLINE_POD_UID"
    POD_IP = "DRUMLINE_POD_IP"
    INDEX = "DRUMLINE_INDEX"
    """Index of this pod (node) in its gang, 0..nodes-1."""
    NODES = "DRUMLINE_NODES"
    GPUS_PER_NODE = "DRUMLINE_GPUS_PER_NODE"
    """Ranks in this pod: one process per GPU."""
    GENERATION = "DRUMLINE_GENERATION"
    EPOCH = "DRUMLINE_EPOCH"
    CONFIG = "DRUMLINE_CONFIG"
    """The trainer's whole configuration as JSON (`config.TrainerConfig`)."""
    CHECKPOINT_FOLDER = "DRUMLINE_CHECKPOINT_FOLDER"
    """Folder shared by all pods of the job; empty where the job has no durable storage."""


class ExitCode(IntEnum):
    """Exit codes of a rank and of its pod; the operator maps them to failure classes."""

    OK = 0
    """What was asked for is done."""
    APPLICATION = 1
    """The training code raised: restarted within the budget."""
    CONFIG = 64
    """The configuration can never work: not restarted."""
    CORRUPT_CHECKPOINT = 65
    """No checkpoint of those on storage verifies: not restarted, nothing is overwritten."""
    PEER_LOST = 75
    """Another member of the gang went away: charged to infrastructure."""
    PREEMPTED = 77
    """Left after a notice, with an acknowledged checkpoint."""


def pod_name(job: str, index: int, generation: int) -> str:
    """Name of a gang member: deterministic, so a replayed create is a harmless 409."""
    return f"{job}-{index}-g{generation}"


def host_name(job: str, index: int) -> str:
    """Name by which members of a gang know each other, through /etc/hosts and without DNS."""
    return f"{job}-{index}"
