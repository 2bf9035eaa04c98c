"""Amounts of node resources: one small value, whole numbers only.

Every amount is an exact integer (millicores, bytes, counts), so sums never drift and two equal
situations compare equal. A difference may be negative: foreign pods can over-commit a node, and
the arithmetic must say so rather than hide it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The request of a pod, or the capacity or usage of a node."""

    gpus: int = 0
    """Devices of the pool's GPU resource."""
    cpu_millis: int = 0
    memory_bytes: int = 0
    pods: int = 0
    """Pod slots. The request of one pod has exactly 1."""
    ephemeral_bytes: int = 0
    extended: tuple[tuple[str, int], ...] = ()
    """Other countable resources (RDMA devices, MIG slices) as (name, count), sorted by name."""

    def __post_init__(self) -> None:
        """Merge and sort `extended`, so that equal amounts are equal values."""
        if self.extended:
            merged: dict[str, int] = {}
            for name, count in self.extended:
                merged[name] = merged.get(name, 0) + count
            canonical = tuple(sorted((name, count) for name, count in merged.items() if count))
            object.__setattr__(self, "extended", canonical)

    def __add__(self, other: Resources) -> Resources:
        # Sums are made for every node of every cycle. A slot is written in a third of the time that
        # the constructor of a frozen value takes.
        total = _NEW(Resources)
        _GPUS(total, self.gpus + other.gpus)
        _CPU(total, self.cpu_millis + other.cpu_millis)
        _MEMORY(total, self.memory_bytes + other.memory_bytes)
        _PODS(total, self.pods + other.pods)
        _EPHEMERAL(total, self.ephemeral_bytes + other.ephemeral_bytes)
        _EXTENDED(total, self.extended + other.extended)
        if other.extended:
            total.__post_init__()
        return total

    def __sub__(self, other: Resources) -> Resources:
        return self + other.times(-1)

    def times(self, count: int) -> Resources:
        """Return the amounts of `count` equal pods."""
        return Resources(
            gpus=self.gpus * count,
            cpu_millis=self.cpu_millis * count,
            memory_bytes=self.memory_bytes * count,
            pods=self.pods * count,
            ephemeral_bytes=self.ephemeral_bytes * count,
            extended=tuple((name, amount * count) for name, amount in self.extended),
        )

    def amounts(self) -> dict[str, int]:
        """Return every non-zero amount by resource name."""
        plain = {name: getattr(self, name) for name in PLAIN_RESOURCES}
        return {name: n for name, n in (plain | dict(self.extended)).items() if n}

    def fits_in(self, free: Resources) -> bool:
        """Return whether `free` has enough of everything that is requested here.

        A resource that is not requested may be over-committed without any harm to this request.
        """
        offered = free.amounts()
        return all(n <= offered.get(name, 0) for name, n in self.amounts().items() if n > 0)

    def has_negative(self) -> bool:
        """Return whether any amount is below zero."""
        return any(n < 0 for n in self.amounts().values())


_NEW: Final = object.__new__
_GPUS, _CPU, _MEMORY, _PODS, _EPHEMERAL, _EXTENDED = (
    Resources.__dict__[each.name].__set__ for each in fields(Resources)
)
PLAIN_RESOURCES: Final = tuple(f.name for f in fields(Resources) if f.name != "extended")
"""The resources every node has, in the order of the fields."""

NOTHING: Final = Resources()

_UNITS: Final = {"gpus": "GPU", "pods": "pod slot"}
_GIB: Final = 1 << 30


def amount(*, resource: str, count: int) -> str:
    """Return an amount of a resource as text: `2 GPUs`, `1.5 CPU`, `16.0 GiB memory`."""
    match resource:
        case "memory_bytes" | "ephemeral_bytes":
            kind = "memory" if resource == "memory_bytes" else "ephemeral storage"
            return f"{count / _GIB:.1f} GiB {kind}"
        case "cpu_millis":
            return f"{count / 1000:g} CPU"
        case _ if resource.startswith("hugepages-"):
            return f"{count / _GIB:.1f} GiB {resource}"
        case _ if resource in _UNITS:
            return f"{count} {_UNITS[resource]}{'' if count == 1 else 's'}"
        case _:
            return f"{count} {resource}"
