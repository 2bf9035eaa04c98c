"""From the exception that ended a rank to an exit code of the contract."""

from __future__ import annotations

import torch.distributed as dist

from drumline_contract import ExitCode
from drumline_contract.buckets.failures import StoreError
from drumline_contract.config import ConfigError
from drumline_trainer.checkpoint.errors import (
    CorruptCheckpointError,
    FolderInUseError,
    FolderTakenError,
    PeerSaveError,
    StaleMembershipError,
    StorageError,
)
from drumline_trainer.data.shards.s3_store import StoreUnreachableError
from drumline_trainer.recovery.tiered_checkpointer import PreemptedError
from drumline_trainer.sharding.gpus import DeviceError

_PEER_LOST_WORDS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "socket closed",
    "remote process exited",
    "ncclremoteerror",
    "ncclsystemerror",
    "ncclinternalerror",
    "nccl communicator was aborted",
    "nccl communicator encountered error",
    "timed out waiting",
)
"""Gloo and NCCL raise plain RuntimeErrors: only their messages tell a lost peer."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code for an exception of `run_rank`."""
    # The order matters: specific classes precede the words, which RuntimeErrors of torch match.
    match error:
        case ConfigError() | FolderInUseError() | FolderTakenError():
            return ExitCode.CONFIG
        case CorruptCheckpointError():
            return ExitCode.CORRUPT_CHECKPOINT
        case StorageError():
            return ExitCode.STORAGE
        case StoreError(may_come_back=True):
            return ExitCode.STORAGE
        case DeviceError():
            return ExitCode.DEVICE
        case StaleMembershipError() | PeerSaveError() | ConnectionError():
            return ExitCode.PEER_LOST
        case dist.DistNetworkError() | dist.DistStoreError():
            return ExitCode.PEER_LOST
        case StoreUnreachableError():  # its message may have the words below
            return ExitCode.APPLICATION
        # `StoreUnreachableError` is handled above. Everything else with these words comes from Gloo
        # or NCCL.
        case RuntimeError() if any(words in str(error).lower() for words in _PEER_LOST_WORDS):
            return ExitCode.PEER_LOST
        case PreemptedError():
            return ExitCode.PREEMPTED
        case _:
            return ExitCode.APPLICATION
