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
from drumline_trainer.sharding.world import tells_lost_peer


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
        case RuntimeError() if tells_lost_peer(error):
            return ExitCode.PEER_LOST
        case PreemptedError():
            return ExitCode.PREEMPTED
        case _:
            return ExitCode.APPLICATION
