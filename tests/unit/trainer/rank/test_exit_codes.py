from __future__ import annotations

import pytest
import torch.distributed as dist

from drumline_contract import ExitCode
from drumline_contract.config import ConfigError
from drumline_trainer.checkpoint.errors import (
    CorruptCheckpointError,
    FolderInUseError,
    FolderTakenError,
    PeerSaveError,
    SaveError,
    StaleMembershipError,
    StorageError,
)
from drumline_trainer.rank import exit_code_of
from drumline_trainer.sharding.gpus import DeviceError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("steps: must be greater than 0"), ExitCode.CONFIG),
        (CorruptCheckpointError("none verifies"), ExitCode.CORRUPT_CHECKPOINT),
        (StaleMembershipError("replaced"), ExitCode.PEER_LOST),
        (FolderTakenError("held by demo/second"), ExitCode.CONFIG),
        (FolderInUseError("held by demo/first"), ExitCode.CONFIG),
        (RuntimeError("pair.cc:561] Connection closed by peer [10.0.0.1]"), ExitCode.PEER_LOST),
        (RuntimeError("Read error [10.0.0.1]: Connection reset by peer"), ExitCode.PEER_LOST),
        (dist.DistBackendError("NCCL error: remote process exited"), ExitCode.PEER_LOST),
        (
            dist.DistBackendError("NCCL communicator was aborted on rank 1. "),
            ExitCode.PEER_LOST,
        ),
        (
            dist.DistBackendError("ncclSystemError: System call (e.g. socket, malloc) failed"),
            ExitCode.PEER_LOST,
        ),
        (
            dist.DistBackendError("ncclInternalError: Internal check failed."),
            ExitCode.PEER_LOST,
        ),
        (dist.DistNetworkError("the store is gone"), ExitCode.PEER_LOST),
        (dist.DistStoreError("wait timeout after 300000ms"), ExitCode.PEER_LOST),
        (RuntimeError("Timed out waiting 600000ms for recv operation"), ExitCode.PEER_LOST),
        (ConnectionResetError("reset"), ExitCode.PEER_LOST),
        (SaveError("rank 1: disk full"), ExitCode.APPLICATION),
        (PeerSaveError("rank 1: disk full"), ExitCode.PEER_LOST),
        (DeviceError("4 GPUs were asked for and 3 can be seen here"), ExitCode.DEVICE),
        (StorageError("rank 1: No space left on device"), ExitCode.STORAGE),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), ExitCode.APPLICATION),
        (MemoryError(), ExitCode.APPLICATION),
    ],
)
def test_exit_codes(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) is code
