"""Names of the pods of a gang, and of their hosts."""

from __future__ import annotations


def pod_name(job: str, index: int, generation: int) -> str:
    """Name of a gang member: deterministic, so a replayed create is a harmless 409."""
    return f"{job}-{index}-g{generation}"


def host_name(job: str, index: int) -> str:
    """Host name of a gang member, resolved through /etc/hosts and without DNS."""
    return f"{job}-{index}"
