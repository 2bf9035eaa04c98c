"""Which ranks read the same files of a folder at the cost of one reading.

The second reading out of a page cache costs the storage nothing, and on processors it is quicker
than the way from one process to another through the host's network. On GPUs it is not; a bucket has
no such cache. Two pods of one node do share it, but do not know of each other: they count as two.
"""

from __future__ import annotations

import socket

import torch


def page_cache(*, of_folder: bool, device: torch.device) -> str | None:
    """The name of this rank's page cache, if it reads what that holds: its pod's, or its host's."""
    return socket.gethostname() if of_folder and device.type == "cpu" else None
