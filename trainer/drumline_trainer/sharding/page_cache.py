"""Sets of ranks that share a page cache, and so read a file of a folder at the cost of one.

A second read from the page cache costs the storage nothing. On CPUs it is faster than sending the
bytes between processes through the host's network. On GPUs it is slower, and a bucket has no such
cache. Two pods of one node share the cache, but cannot detect it, so they count as two.
"""

from __future__ import annotations

import socket

import torch


def page_cache(*, of_folder: bool, device: torch.device) -> str | None:
    """Return the name of this rank's page cache: its pod's or its host's. None: it uses none."""
    return socket.gethostname() if of_folder and device.type == "cpu" else None
