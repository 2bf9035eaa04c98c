from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

import pytest

from drumline_agent.processes import fault_classification
from drumline_agent.processes.rank_main import one_line
from drumline_contract import FaultClass
from tests.gloo.nccl.errors import ECC, NcclResult

CUDA = "AcceleratorError: CUDA error:"
NCCL = "DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error"
INFRASTRUCTURE = FaultClass.INFRASTRUCTURE
DEVICES_OWN = {
    *("cudaErrorInitializationError", "cudaErrorCudartUnloading", "cudaErrorInsufficientDriver"),
    *("cudaErrorDevicesUnavailable", "cudaErrorNoDevice", "cudaErrorECCUncorrectable"),
    *("cudaErrorNvlinkUncorrectable", "cudaErrorContained", "cudaErrorHardwareStackError"),
    *("cudaErrorSystemNotReady", "cudaErrorSystemDriverMismatch"),
    *("cudaErrorCompatNotSupportedOnDevice", "cudaErrorMpsConnectionFailed"),
    *("cudaErrorMpsRpcFailure", "cudaErrorMpsServerNotReady", "cudaErrorMpsClientTerminated"),
}
"""Of all errors of CUDA those that no program can cause."""
UNKNOWN = "unrecognized error code"


@pytest.mark.parametrize(
    ("code", "error", "killed", "fault_class"),
    [
        (1, "ValueError: boom", False, FaultClass.APPLICATION),
        (-11, "", False, FaultClass.APPLICATION),
        (-6, "", False, FaultClass.APPLICATION),
        (-9, "", False, FaultClass.INFRASTRUCTURE),
        (-15, "", False, FaultClass.INFRASTRUCTURE),
        (-15, "", True, FaultClass.INFRASTRUCTURE),
        (-9, "MemoryError", False, FaultClass.OUT_OF_MEMORY),
        (-9, "", True, FaultClass.OUT_OF_MEMORY),
        (1, "MemoryError", False, FaultClass.OUT_OF_MEMORY),
        (1, "OutOfMemoryError: CUDA out of memory.", False, FaultClass.OUT_OF_MEMORY),
        (1, "torch.OutOfMemoryError: CUDA", False, FaultClass.OUT_OF_MEMORY),
        (1, "RuntimeError: CUDA out of memory. Tried", False, FaultClass.OUT_OF_MEMORY),
        (1, "torch.AcceleratorError: CUDA error: out of memory", False, FaultClass.OUT_OF_MEMORY),
        (
            1,
            "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.",
            False,
            FaultClass.OUT_OF_MEMORY,
        ),
        (1, "RuntimeError: the queue is out of memory", False, FaultClass.APPLICATION),
        (1, "ValueError: not a MemoryError", True, FaultClass.APPLICATION),
        (74, "StorageError: No space left on device", False, FaultClass.INFRASTRUCTURE),
        (75, "ConnectionError: gone", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} uncorrectable ECC error encountered", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} no CUDA-capable device is detected", False, FaultClass.INFRASTRUCTURE),
        (1, "RuntimeError: No CUDA GPUs are available", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} system not yet initialized", False, FaultClass.INFRASTRUCTURE),
        (1, "NVMLError: GPU has fallen off the bus", False, FaultClass.INFRASTRUCTURE),
        (1, "NVMLError: Driver/library version mismatch", False, FaultClass.INFRASTRUCTURE),
        (1, "RuntimeError: The NVIDIA driver on your system is too old", False, INFRASTRUCTURE),
        (
            1,
            f"{NCCL} (Cuda failure 'uncorrectable ECC error')",
            False,
            INFRASTRUCTURE,
        ),
        (1, f"{NCCL} (Cuda failure 700 'an illegal memory access')", False, FaultClass.APPLICATION),
        (69, "DeviceError: 4 GPUs were asked for", False, FaultClass.INFRASTRUCTURE),
        (1, f"{CUDA} device-side assert triggered", False, FaultClass.APPLICATION),
        (1, f"{CUDA} an illegal memory access was encountered", False, FaultClass.APPLICATION),
        (65, "CorruptCheckpointError: GPU is lost", False, FaultClass.APPLICATION),
    ],
)
def test_the_class_of_an_end(code: int, error: str, killed: bool, fault_class: FaultClass) -> None:
    assert fault_classification.classify(code, error=error, killed_for_memory=killed) is fault_class


def cudas_own_words() -> dict[str, str]:
    """By name, all that the installed CUDA can say."""
    package = find_spec("nvidia")
    folders = [] if package is None else list(package.submodule_search_locations or [])
    files = [path for folder in folders for path in Path(folder).glob("*/lib/libcudart.so*")]
    if not files:
        pytest.skip("this torch comes without CUDA")
    cuda = ctypes.CDLL(str(files[0]))
    for function in (cuda.cudaGetErrorName, cuda.cudaGetErrorString):
        function.restype = ctypes.c_char_p
    words = {
        cuda.cudaGetErrorName(number).decode(): cuda.cudaGetErrorString(number).decode()
        for number in range(1, 1000)
    }
    return {name: text for name, text in words.items() if text != UNKNOWN}


def test_of_all_that_cuda_says_the_devices_own_faults_are_infrastructure() -> None:
    words = cudas_own_words()
    charged = {
        name
        for name, text in words.items()
        if fault_classification.classify(1, error=f"{CUDA} {text}", killed_for_memory=False)
        is FaultClass.INFRASTRUCTURE
    }
    assert charged == DEVICES_OWN
    assert {"cudaErrorIllegalAddress", "cudaErrorAssert", "cudaErrorLaunchFailure"} <= words.keys()


def test_nccls_last_error_names_the_device_that_failed() -> None:
    error = RuntimeError(NcclResult.UNHANDLED_CUDA_ERROR.text_of_call(last_error=ECC))
    line = one_line(error)
    assert line.startswith("RuntimeError: NCCL error in: ")
    assert line.endswith(f"({ECC})")
    assert fault_classification.device_failed(1, error=line)
    assert one_line(ValueError("boom\nat line 3")) == "ValueError: boom"


def test_kills_for_memory_are_counted_by_the_kernel(tmp_path: Path) -> None:
    assert fault_classification.memory_kills(tmp_path) == 0
    (tmp_path / "memory.events").write_text("low 0\nmax 7\noom 3\noom_kill 2\n")
    assert fault_classification.memory_kills(tmp_path) == 2


def test_kills_for_memory_counted_by_an_older_kernel(tmp_path: Path) -> None:
    counts = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"
    (tmp_path / "memory.oom_control").write_text(counts)
    assert fault_classification.memory_kills(tmp_path) == 4


def test_the_own_control_group(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("4:memory:/old\n0::/kubepods/pod7\n")
    assert fault_classification.own_cgroup(membership, root=tmp_path) == tmp_path / "kubepods/pod7"
    assert fault_classification.own_cgroup(tmp_path / "none", root=tmp_path) == tmp_path
    (tmp_path / "memory").mkdir()
    assert fault_classification.own_cgroup(membership, root=tmp_path) == tmp_path / "memory"
