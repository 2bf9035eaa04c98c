"""What torch's watchdog of NCCL does where agents bring ranks to rest: it ends no process.

Its threads look at operations beside the training thread. By their defaults they end the process
when a peer is lost or an operation is late, when CUDA answers them with an error, and when one of
them is stuck for eight minutes. So survivors would die with the lost rank, and a broken GPU would
look like a SIGABRT of the program: the training thread meets CUDA's error itself, in its words.
"""

from __future__ import annotations

import os

HANDLING = {
    # torch asks for 0 where communicators are aborted: distributed_c10d._abort_process_group
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    # it still writes its records; agents notice hangs, and know whose they are
    "TORCH_NCCL_ENABLE_MONITORING": "0",
}
"""By variable; ProcessGroupNCCL.hpp has their meanings."""


def leave_faults_to_the_agent() -> None:
    """Have the watchdog do nothing, where nobody has set it. Call this before a group is made."""
    for name, value in HANDLING.items():
        os.environ.setdefault(name, value)
