"""What must be the same on all ranks is compared before they depend on it.

Ranks that differ in a version, a setting of NCCL or their configuration do not fail: they hang in
the first collective, or train something else. So every rank publishes its facts in the rendezvous
store before the first collective, and the last one to arrive judges for all: either everybody goes
on, or everybody fails with the same sentence, which names two ranks and what each of them has.

A rank sends three messages and waits for one; the last one to arrive reads what all published. That
is also how the ranks wait for each other. Every waiting is bounded, and who did not come is named.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from drumline_trainer.config import ConfigError
from drumline_trainer.layout import Layout

HEARING = timedelta(seconds=5)
"""How long ranks that will not train wait for each other to know why."""
PATIENCE = timedelta(minutes=5)
"""How long a rank waits for the others."""
_PREFIXES = ("NCCL_", "TORCH_NCCL_")
_MAY_DIFFER = {
    # names of this host's devices and files, and what is only written, never agreed on
    "NCCL_CONF_FILE",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_GRAPH_DUMP_FILE",
    "NCCL_HOSTID",
    "NCCL_IB_HCA",
    "NCCL_SOCKET_IFNAME",
    "NCCL_TOPO_DUMP_FILE",
    "NCCL_TOPO_FILE",
    "TORCH_NCCL_DEBUG_INFO_PIPE_FILE",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
}
_SAMENESS = "set it the same on all ranks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What one process published."""

    rank: int
    world_size: int
    process: str
    """Host and process id: tells apart two that claim one rank."""
    facts: dict[str, str]


def environment_facts(
    configuration: Mapping[str, Any], layout: Layout, *, backend: str
) -> dict[str, str]:
    """What must not differ between ranks of one run, by name."""
    whole = json.dumps(configuration, sort_keys=True, default=str).encode()
    facts = {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "backend": backend,
        "layout": str(layout),
        "configuration": hashlib.sha256(whole).hexdigest()[:12],
    }
    if backend == "nccl":
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    settings = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    return facts | {name: settings[name] for name in sorted(settings.keys() - _MAY_DIFFER)}


def agree_on_environment(
    store: Store,
    *,
    rank: int,
    world_size: int,
    facts: Mapping[str, str],
    timeout: timedelta = PATIENCE,
) -> None:
    """Return once all ranks are here and have the same facts.

    Args:
        store: of this membership alone (a prefix of its own).
        rank: of this process.
        world_size: how many must come.
        facts: `environment_facts`.
        timeout: for the others to come.

    Raises:
        ConfigError: two ranks differ, or claim the same rank; the same sentence on all ranks.
        torch.distributed.DistStoreError: not all came in time.
    """
    mine = Said(
        rank=rank,
        world_size=world_size,
        process=f"{socket.gethostname()} pid {os.getpid()}",
        facts=dict(facts),
    )
    _judged(store, mine, name="environment", judge=first_difference, timeout=timeout)


def agree_on_groups(
    store: Store,
    *,
    rank: int,
    world_size: int,
    groups: Mapping[str, Sequence[int]],
    timeout: timedelta = PATIENCE,
) -> None:
    """Return once every member of every group has the same list of its members.

    Args:
        store: of this membership alone.
        rank: of this process.
        world_size: how many ranks take part.
        groups: members of this rank's groups by the name of the axis, in their order.
        timeout: for the others to come.

    Raises:
        ConfigError: a rank's list leaves it out, or a member has another one.
        torch.distributed.DistStoreError: not all came in time.
    """
    facts = {axis: ", ".join(map(str, members)) for axis, members in groups.items()}
    mine = Said(rank=rank, world_size=world_size, process="", facts=facts)
    _judged(store, mine, name="groups", judge=first_stranger, timeout=timeout)


def first_difference(all_said: Sequence[Said]) -> str:
    """A sentence about the first thing that ranks differ in; empty where there is none."""
    return next(_differences(sorted(all_said, key=lambda said: said.rank)), "")


def first_stranger(all_said: Sequence[Said]) -> str:
    """A sentence about the first group that its members do not agree on; empty: there is none."""
    by_rank = {said.rank: said for said in all_said}
    for said in all_said:
        for axis, members in said.facts.items():
            for member in (said.rank, *map(int, members.split(", "))):
                theirs = by_rank[member].facts.get(axis) if member in by_rank else None
                if theirs != members or str(said.rank) not in members.split(", "):
                    return (
                        f"rank {said.rank} has the ranks {members} in its {axis} group and rank"
                        f" {member} has {theirs or 'no such group'}"
                    )
    return ""


def _differences(all_said: Sequence[Said]) -> Iterator[str]:
    """By rank. A rank that is alone with its value is told apart from the most frequent one."""
    for before, after in pairwise(all_said):
        if before.rank == after.rank:
            yield (
                f"{before.process} and {after.process} both say that they are rank {after.rank};"
                " give every process its own"
            )
    sizes = [str(said.world_size) for said in all_said]
    yield from _difference("world size", sizes, all_said)
    names = {name: None for said in all_said for name in said.facts}  # a set that keeps its order
    for name in names:
        values = [said.facts.get(name) for said in all_said]
        yield from _difference(name, values, all_said)


def _difference(name: str, values: Sequence[str | None], all_said: Sequence[Said]) -> Iterator[str]:
    usual = Counter(values).most_common(1)[0][0]  # of equally frequent ones the first rank's
    odd = next((place for place, value in enumerate(values) if value != usual), None)
    if odd is not None:
        yield (
            f"rank {all_said[odd].rank} has {_shown(name, values[odd])} and rank"
            f" {all_said[values.index(usual)].rank} has {_shown(name, usual)}; {_SAMENESS}"
        )


def _shown(name: str, value: str | None) -> str:
    return f"{name} unset" if value is None else f"{name}={value}"


def _judged(
    store: Store,
    mine: Said,
    *,
    name: str,
    judge: Callable[[Sequence[Said]], str],
    timeout: timedelta,
) -> None:
    """Publish, and leave with the judgement of the last to arrive."""
    arrived = store.add(f"{name}/arrived", 1)
    store.set(f"{name}/{arrived}", json.dumps(asdict(mine)))
    if arrived == mine.world_size:
        store.set(f"{name}/judgement", judge(_all_said(store, name, arrived)))
    try:
        store.wait([f"{name}/judgement"], timeout)
    except dist.DistStoreError as error:
        raise _incomplete(store, mine, name=name, judge=judge) from error
    judgement = store.get(f"{name}/judgement").decode()
    if judgement:
        _until_all_have_heard(store, mine, name=name)
        raise ConfigError(judgement)


def _until_all_have_heard(store: Store, mine: Said, *, name: str) -> None:
    """The store may be one of rank 0's, and must not end with it before the others have read."""
    with suppress(dist.DistError):
        if store.add(f"{name}/heard", 1) == mine.world_size:
            store.set(f"{name}/all have heard", "")
        store.wait([f"{name}/all have heard"], HEARING)


def _all_said(store: Store, name: str, arrived: int) -> list[Said]:
    keys = [f"{name}/{number}" for number in range(1, arrived + 1)]
    return [Said(**json.loads(text)) for text in store.multi_get(keys)]


def _incomplete(
    store: Store, mine: Said, *, name: str, judge: Callable[[Sequence[Said]], str]
) -> Exception:
    """Nobody judged: what those who came differ in, or who did not come."""
    here = _all_said(store, name, store.add(f"{name}/arrived", 0))
    found = judge(here)
    if found:
        return ConfigError(found)
    missing = sorted(set(range(mine.world_size)) - {said.rank for said in here})
    return dist.DistStoreError(
        f"rank {mine.rank} waited in vain for rank {', '.join(map(str, missing))} of"
        f" {mine.world_size}"
    )
