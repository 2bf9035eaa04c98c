"""Parses the host lists of batch schedulers, in the order of their nodes. Pure; no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator

_BRACKETS = re.compile(r"\[([^\]]*)\]")
_OUTSIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
_REPEATED = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def hosts_of(nodelist: str) -> tuple[str, ...]:
    """Write Slurm's short form out: `a[01-03,7],b` is a01, a02, a03, a7, b.

    Raises:
        ValueError: it is not such a list.
    """
    return tuple(host for part in _OUTSIDE_BRACKETS.split(nodelist) for host in _expand(part))


def _expand(part: str) -> Iterator[str]:
    """Yield all hosts of one name with any number of brackets; the first one varies slowest."""
    bracket = _BRACKETS.search(part)
    if bracket is None:
        if not part or "[" in part or "]" in part:
            raise ValueError(f"{part!r} is not the name of a host")
        yield part
        return
    # Recursion expands one bracket at a time, so names may have several, such as rack[1-2]n[1-4].
    before, after = part[: bracket.start()], part[bracket.end() :]
    for numbers in bracket[1].split(","):
        first, dash, last = numbers.partition("-")
        for number in range(int(first), int(last if dash else first) + 1):
            # Slurm keeps leading zeros: the width is that of the first number.
            yield from _expand(f"{before}{number:0{len(first)}}{after}")


def tasks_of(counts: str) -> tuple[int, ...]:
    """Write Slurm's tasks by node out: `4(x2),3` is 4, 4, 3.

    Raises:
        ValueError: it is not such a list.
    """
    tasks: list[int] = []
    for part in counts.split(","):
        match = _REPEATED.fullmatch(part)
        if match is None:
            raise ValueError(f"{part!r} is not a number of tasks")
        # `4(x2)` stands for two nodes with four tasks each.
        tasks += [int(match[1])] * int(match[2] or 1)
    return tuple(tasks)


def first_in_nodelist(nodelist: str) -> str:
    """Return Slurm's node 0, where rank 0 runs."""
    return hosts_of(nodelist)[0]


def first_compute_host(hosts: str) -> str:
    """Return the first host that runs ranks of LSF's `batch1 1 node1 42 node2 42`.

    jsrun puts none on the host of the batch script, which comes first, with one slot.
    """
    words = hosts.split()
    names, slots = words[::2], words[1::2]
    # With one host the batch host runs ranks too.
    return names[1] if len(names) > 1 and slots[0] == "1" else names[0]


def host_part(address: str) -> str:
    """Return `host` of `host:port`; an IPv6 address stands in brackets.

    Raises:
        ValueError: it is not host:port.
    """
    # The last colon separates the port, because IPv6 addresses contain colons.
    host = address.rpartition(":")[0].strip("[]")
    if not host:
        raise ValueError(f"{address!r} is not host:port")
    return host


def port_part(address: str) -> str:
    """Return `port` of `host:port`, or all of an address without a host."""
    return address.rpartition(":")[2]
