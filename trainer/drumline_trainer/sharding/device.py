"""The device that a rank computes on, and the storage of a model there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from drumline_contract import Env
from drumline_contract.config import ConfigError
from drumline_trainer.sharding.gpus import (
    DEVICE_VARIABLE,
    DeviceError,
    Gpus,
    TorchGpus,
    gpu_device_files,
    gpus_were_given,
)


def device_of_rank(
    local_rank: int,
    *,
    of: int,
    environ: Mapping[str, str] | None = None,
    gpus: Gpus | None = None,
    device_files: Sequence[str] | None = None,
) -> torch.device:
    """Return the GPU of this rank, tested by a computation, or the CPU if no GPU was requested.

    A rank never computes on the CPU instead of a GPU, and never on the GPU of another rank. If all
    ranks see all GPUs, each takes the one of its number. If a launcher shows each rank only its own
    GPU, this is trusted here, and `preflight` compares their names.

    Args:
        local_rank: local rank of this process among those of its pod or machine.
        of: number of ranks there.
        environ: the process's environment; None: the present one.
        gpus: the GPUs that the process sees; None: through torch.
        device_files: device files of GPUs. None: the files in /dev.

    Raises:
        DeviceError: a requested GPU is missing or does not work.
        ConfigError: this version of PyTorch cannot use GPUs, there are more ranks than GPUs, or the
            variable has another value.
    """
    # Phase 1: the variable decides before torch touches the driver.
    environ = os.environ if environ is None else environ
    wanted = environ.get(DEVICE_VARIABLE, "")
    if wanted not in ("", "cpu", "gpu"):
        raise ConfigError(f"{DEVICE_VARIABLE}: must be cpu or gpu, not {wanted!r}")
    if wanted == "cpu":
        return torch.device("cpu")
    # Phase 2: no visible GPU is an error if one was given. A silent CPU run would take weeks.
    gpus = TorchGpus() if gpus is None else gpus
    count = gpus.count()
    if count == 0:
        files = gpu_device_files() if device_files is None else device_files
        if wanted == "gpu" or gpus_were_given(environ, device_files=files):
            raise _no_gpu(gpus)
        return torch.device("cpu")
    # Phase 3: choose and test. A driver can list a GPU that fails at the first kernel.
    index = _index(local_rank, of=of, count=count, in_pod=Env.GPUS_PER_NODE in environ)
    try:
        gpus.probe(index)
    except RuntimeError as error:
        # The first line names the error. The others are torch's advice on CUDA_LAUNCH_BLOCKING.
        words = str(error).strip().partition("\n")[0]
        raise DeviceError(f"GPU {index} does not work: {words}") from error
    return torch.device("cuda", index)


def _no_gpu(gpus: Gpus) -> DeviceError | ConfigError:
    kind = DeviceError if gpus.are_supported() else ConfigError
    return kind(
        f"GPUs were asked for and none can be used here: {gpus.why_none()};"
        f" {DEVICE_VARIABLE}=cpu trains on the processors"
    )


def _index(local_rank: int, *, of: int, count: int, in_pod: bool) -> int:
    """Return the index of this rank's GPU among the visible ones.

    Raises:
        DeviceError: a pod has fewer GPUs than requested.
        ConfigError: outside of a pod, there are fewer GPUs than ranks.
    """
    if of <= count:
        return local_rank
    if in_pod:
        # In a pod the device plugin is at fault, so the pod is retried on another node.
        raise DeviceError(f"{of} GPUs were asked for and {count} can be seen here")
    if count == 1:  # a launcher's: each rank sees its own
        return 0
    raise ConfigError(
        f"{of} ranks of this machine see {count} GPUs: start one rank for each, or show each its"
        f" own by CUDA_VISIBLE_DEVICES; {DEVICE_VARIABLE}=cpu trains on the processors"
    )


def give_storage(module: nn.Module, device: torch.device) -> None:
    """Replace tensors on the meta device by tensors with undefined contents.

    Like `to_empty`, but without strides: those need sympy, which takes half a second to import.
    """

    def allocate(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

    module._apply(allocate)  # noqa: SLF001 - as Module.to does # pyright: ignore[reportPrivateUsage, reportUnknownMemberType] - untyped in torch
