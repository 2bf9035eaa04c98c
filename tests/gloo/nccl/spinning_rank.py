"""`tests.gloo.nccl.rank` whose threads burn their processor while they wait for a result.

They keep the interpreter's lock for as long as Python lets them: heartbeats, orders and the abort
must come through all the same.
"""

from __future__ import annotations

import os

from tests.gloo.nccl.device import Waiting
from tests.gloo.nccl.rank import exit_code_of, run_rank, serve_store
from tests.gloo.nccl.work import WAITING

__all__ = ["exit_code_of", "run_rank", "serve_store"]

os.environ[WAITING] = Waiting.SPINNING_LOCKED.value
