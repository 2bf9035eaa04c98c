"""The GPUs of a machine as torch sees them, and whether a process was given any."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, cast

import torch

from drumline_contract import Env

DEVICE_VARIABLE: Final = "DRUMLINE_DEVICE"
"""`gpu` or `cpu`: what ranks compute on, whatever the machine shows."""
_HIDDEN: Final = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that hide every GPU."""
_UNSAID: Final = ("", "all", "none", "void")
"""Values of NVIDIA_VISIBLE_DEVICES that images have: they give a container no GPU by name."""
_DEVICE_FILES: Final = ("nvidia[0-9]*", "kfd", "accel/accel[0-9]*")
"""In /dev: a GPU of NVIDIA, AMD's driver, a Gaudi. They stay when the driver has stopped working.
"""


class DeviceError(RuntimeError):
    """A GPU that was asked for is not there or does not work: no fault of the program."""


class Gpus(Protocol):
    """The GPUs of a machine that a process sees."""

    def are_supported(self) -> bool:
        """Return whether this version of PyTorch can use GPUs at all."""
        ...

    def count(self) -> int:
        """Return the number of visible GPUs; 0 also if the driver does not work."""
        ...

    def why_none(self) -> str:
        """Return in a line why there is none."""
        ...

    def probe(self, index: int) -> None:
        """Compute something. Raises RuntimeError where the GPU does not work."""
        ...


class TorchGpus:
    """The GPUs of this process."""

    def are_supported(self) -> bool:
        """Return whether torch was built with CUDA or ROCm."""
        return torch.backends.cuda.is_built()

    def count(self) -> int:
        """Return the number of GPUs that CUDA's driver reports."""
        return torch.cuda.device_count() if torch.cuda.is_available() else 0

    def why_none(self) -> str:
        """Return the driver's own message."""
        if not self.are_supported():
            return f"torch {torch.__version__} is built without CUDA (NVIDIA) and ROCm (AMD)"
        try:
            # init raises the driver's reason. is_available only returns False.
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return str(error).strip().partition("\n")[0]
        return "the driver finds none"

    def probe(self, index: int) -> None:
        """Allocate, add, and wait for the result."""
        # item() synchronizes, so an asynchronous kernel error appears here.
        torch.ones(1, device=torch.device("cuda", index)).add(1).item()


def identity_of(device: torch.device) -> str:
    """Return a GPU's unique name, its UUID or that of a part (MIG); a CPU has an empty one."""
    if device.type != "cuda":
        return ""
    # All parts of a GPU share its UUID, so the name of the MIG part is the identity.
    part = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if part.startswith("MIG-"):
        return part
    properties = cast("Any", torch.cuda.get_device_properties(device))  # pyright: ignore[reportUnknownMemberType] - untyped
    uuid = getattr(properties, "uuid", None)  # not in every build for ROCm
    return "" if uuid is None else f"GPU-{uuid}"


def gpus_were_given(environ: Mapping[str, str], *, device_files: Iterable[str]) -> bool:
    """Return whether GPUs were assigned to this process, visible or not.

    In a pod of the operator there is one for each rank. Otherwise the variables of the launcher or
    of the container show it, or the driver's files.

    Args:
        environ: the process's environment.
        device_files: names in /dev of GPUs and their drivers (`gpu_device_files`).
    """
    # The most specific source decides first: operator, launcher, container, then driver files.
    if environ.get(Env.GPUS_PER_NODE, "0") not in ("", "0"):
        return True
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return named not in _HIDDEN
    if environ.get("NVIDIA_VISIBLE_DEVICES", "") not in _UNSAID:
        return True
    return any(device_files)


def gpu_device_files(folder: Path = Path("/dev")) -> list[str]:
    """List the names of the device files of GPUs."""
    return [path.name for pattern in _DEVICE_FILES for path in folder.glob(pattern)]
