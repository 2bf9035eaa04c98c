"""One compute thread: matrices of tests are small, and threads that wait for one another spin.

On two busy cores two threads take four times as long, and more than twice the CPU.
"""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_compute_thread() -> None:
    torch.set_num_threads(1)
