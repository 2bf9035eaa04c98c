"""What NCCL and torch say when a communicator fails, word for word.

`test_errors.py` holds these against the installed libraries.
"""

from __future__ import annotations

from enum import Enum

NCCL_VERSION = "2.29.7"


_SYSTEM = (
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device"
    " error. "
)
_REMOTE = (
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting"
    " prematurely."
)


class NcclResult(Enum):
    """A result of NCCL: its number, `ncclGetErrorString`, and what torch adds."""

    UNHANDLED_CUDA_ERROR = (
        1,
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "ncclUnhandledCudaError: Call to CUDA function failed.",
    )
    SYSTEM_ERROR = (
        2,
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        _SYSTEM,
    )
    INTERNAL_ERROR = (
        3,
        "internal error - please report this issue to the NCCL developers",
        "ncclInternalError: Internal check failed.",
    )
    REMOTE_ERROR = (
        6,
        "remote process exited or there was a network error",
        _REMOTE,
    )

    @property
    def number(self) -> int:
        """As in nccl.h."""
        return self.value[0]

    @property
    def words(self) -> str:
        """NCCL's own."""
        return self.value[1]

    @property
    def explanation(self) -> str:
        """torch's."""
        return self.value[2]

    def text(self, *, last_error: str = "") -> str:
        """What torch raises for an asynchronous error; `last_error` is NCCL's newest warning."""
        last = f"\nLast error:\n{last_error}" if last_error else ""
        return f"NCCL error: {self.words}, NCCL version {NCCL_VERSION}\n{self.explanation}{last}"

    def text_of_call(self, *, last_error: str = "") -> str:
        """What torch raises where a call of NCCL fails."""
        where = "/pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94"
        return self.text(last_error=last_error).replace("NCCL error: ", f"NCCL error in: {where}, ")


ABORTED = "NCCL communicator was aborted on rank "
CLOSED_BY_PEER = (
    "socketPollConnect: connect to 10.0.0.7<43817> returned Connection refused, exceeded error"
    " retry count (35)"
)
"""A warning of NCCL that torch shows as the last error."""
ECC = "Cuda failure 'uncorrectable ECC error encountered'"


def aborted(rank: int, *, reason: str = "") -> str:
    """What every call raises after an abort."""
    original = f" Original reason for failure was: {reason}" if reason else ""
    return f"{ABORTED}{rank}. {original}"
