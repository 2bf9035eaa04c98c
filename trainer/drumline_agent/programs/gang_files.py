"""The files that describe the gang to a pod with a custom template: pure rendering, atomic writes.

hosts         mounted over /etc/hosts: every member by name, without DNS, and the pods of roles
hostfile      for Open MPI's mpirun: `host slots=ranks` of every member that has ranks
members.json  everything the record says about the members
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from drumline_contract import GenerationRecord

_LOCAL = """\
# Written by Drumline for one generation of a gang.
127.0.0.1\tlocalhost
::1\tlocalhost ip6-localhost ip6-loopback
fe00::\tip6-localnet
fe00::\tip6-mcastprefix
fe00::1\tip6-allnodes
fe00::2\tip6-allrouters
"""


def render(
    record: GenerationRecord, *, own_index: int, own_name: str, slots: int | None = None
) -> dict[str, str]:
    """Return the contents of the gang's files by name.

    Args:
        record: the gang.
        own_index: index of this pod.
        own_name: this pod's hostname, which must resolve too.
        slots: slots of each host, where that is not the number of its ranks in the record.
    """
    hostfile = [
        f"{member.host} slots={slots or member.ranks}\n"
        for member in record.members
        if member.ranks
    ]
    return {
        "hosts": _hosts(record, own_index=own_index, own_name=own_name),
        "hostfile": "".join(hostfile),
        "members.json": _members(record, own_index=own_index),
    }


def write(folder: Path, files: dict[str, str]) -> None:
    """Write the files, each atomically. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        unfinished = folder / f".{name}.unfinished"
        unfinished.write_text(text)
        unfinished.chmod(0o644)
        unfinished.rename(folder / name)


def alone(*, own_name: str, address: str) -> str:
    """Render the hosts file of a pod that does not know its gang yet."""
    return f"{_LOCAL}{address}\t{own_name}\n"


def write_in_place(folder: Path, files: dict[str, str]) -> None:
    """Write into the files: a mount of a single file never shows another. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)


def _hosts(record: GenerationRecord, *, own_index: int, own_name: str) -> str:
    lines = [
        f"{member.address}\t{member.host}"
        + (f" {member.alias}" if member.alias else "")
        + (f" {own_name}" if member.index == own_index and own_name != member.host else "")
        for member in (*record.members, *record.companions)
    ]
    return _LOCAL + "".join(f"{line}\n" for line in lines)


def _members(record: GenerationRecord, *, own_index: int) -> str:
    whole = {
        "generation": record.generation,
        "index": own_index,
        "world_size": record.world_size,
        "members": [
            {**asdict(member), "first_rank": record.first_rank(member.index)}
            for member in record.members
        ],
    }
    return json.dumps(whole, indent=1) + "\n"
