"""Comparison of everything that must be equal on all ranks, before they depend on it.

Ranks that differ in a version, a setting of NCCL or their configuration do not fail. They hang in
the first collective, or train something else. So every rank publishes its facts in the rendezvous
store before the first collective, and the last rank to arrive compares all. Then either all ranks
continue, or all fail with the same message, which names two ranks and their values.

A rank sends three messages and waits for one. The last to arrive reads all reports. This also
synchronizes the ranks. Every wait has a timeout, and missing ranks are named.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.cuda.nccl
import torch.distributed as dist
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage] - torch exports it without __all__

from drumline_contract import HUB_SCHEME
from drumline_contract.config import ConfigError
from drumline_contract.layout import Axis, Layout
from drumline_contract.shapes.hugging_face import from_hub

DELIVERY_TIMEOUT = timedelta(seconds=5)
"""Longest wait of failing ranks for each other to receive the reason."""
PREFLIGHT_TIMEOUT = timedelta(minutes=5)
"""Longest wait of a rank for the others."""
NCCL2_VARIABLE = "TORCH_DIST_USE_NCCL2"
"""0: NCCL not through the implementation that is torch's default since 2.15."""
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
_SOURCES = (
    *("model_from", "config_from", "lora.adapters_from"),
    *("data.source", "evaluation.source"),
)
"""Settings that may name a repository on the Hugging Face Hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """Facts that one process published."""

    rank: int
    world_size: int
    process: str
    """Host and process id: tells apart two that claim one rank."""
    facts: dict[str, str]
    groups: dict[str, str] = field(default_factory=dict[str, str])
    """Ranks by axis, `0, 2`."""
    gpu: str = ""
    """Its GPU's name, which no other GPU has; empty without one."""


def environment_facts(
    configuration: Mapping[str, Any], layout: Layout, *, backend: str
) -> dict[str, str]:
    """Return the facts that must be equal on the ranks of one run, by name.

    Args:
        configuration: settings that must be equal.
        layout: degrees of parallelism.
        backend: name of torch's backend.
    """
    # The model gets a name of its own, so that a difference in it is reported before the whole
    # configuration's.
    folder = configuration.get("model_from")
    # The order of the facts is the order in which differences are reported.
    facts = {
        **_commits(configuration),
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "backend": backend,
        "layout": str(layout),
        "model" if folder is None else f"model of {folder}": _digest(configuration.get("model")),
        "configuration": _digest(configuration),
    }
    if backend == "nccl":
        facts["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        facts[NCCL2_VARIABLE] = os.environ.get(NCCL2_VARIABLE, "0")  # which joining sets
    # Only NCCL's variables: others may differ by host without any harm.
    settings = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    return facts | {name: settings[name] for name in sorted(settings.keys() - _MAY_DIFFER)}


def _commits(configuration: Mapping[str, Any]) -> dict[str, str]:
    """Return the commits of repositories on the Hub: a branch may move between two pods."""
    commits: dict[str, str] = {}
    for name in _SOURCES:
        section, _, key = name.rpartition(".")
        values: Any = configuration.get(section) if section else configuration
        place = values.get(key) if values else None
        if isinstance(place, str) and place.startswith(HUB_SCHEME):
            commits[f"commit of {place}"] = from_hub(place, "commit", field=name).commit
    return commits


def groups_of(layout: Layout, rank: int) -> dict[str, list[int]]:
    """Return the groups of a rank by axis, without those of one rank or all ranks."""
    # Groups of one rank need no agreement, and all ranks are compared by the world size.
    groups = {axis.value: list(layout.group_of(axis, rank)) for axis in Axis}
    return {axis: ranks for axis, ranks in groups.items() if 1 < len(ranks) < layout.world_size}


def agree(
    store: Store,
    *,
    rank: int,
    world_size: int,
    facts: Mapping[str, str],
    groups: Mapping[str, Sequence[int]],
    gpu: str = "",
    timeout: timedelta = PREFLIGHT_TIMEOUT,
) -> None:
    """Return once all ranks are here, have the same facts and the same groups.

    Args:
        store: store of this membership alone (a prefix of its own).
        rank: rank of this process.
        world_size: number of ranks that must come.
        facts: `environment_facts`.
        groups: `groups_of`.
        gpu: name of this process's GPU, which no other GPU has; empty without one.
        timeout: time within which the other ranks must come.

    Raises:
        ConfigError: two ranks differ, claim the same rank or GPU, or do not agree on a group; the
            same sentence on all ranks.
        torch.distributed.DistStoreError: not all came in time.
    """
    # Phase 1: publish. Reports are numbered by arrival, because two processes may claim one rank.
    mine = RankReport(
        rank=rank,
        world_size=world_size,
        process=f"{socket.gethostname()} pid {os.getpid()}",
        facts=dict(facts),
        groups={axis: ", ".join(map(str, members)) for axis, members in groups.items()},
        gpu=gpu,
    )
    # `add` is atomic: exactly one process gets the last number.
    arrived = store.add("arrived", 1)
    store.set(f"said/{arrived}", json.dumps(asdict(mine)))
    # Phase 2: the last one compares for all, so the result is one sentence. Reading waits for
    # reports that are not yet set.
    if arrived == world_size:
        store.set("judgement", first_problem(_read_reports(store, arrived)) or "")
    # Phase 3: wait for the result. A rank that never comes is named after the timeout.
    try:
        store.wait(["judgement"], timeout)
    except dist.DistStoreError as error:
        raise _incomplete(store, mine) from error
    judgement = store.get("judgement").decode()
    # An empty result means that all ranks agree.
    if judgement:
        # The store may live in the process of rank 0, which must not end before others have read.
        _until_all_have_heard(store, mine)
        raise ConfigError(judgement)


def first_problem(reports: Sequence[RankReport]) -> str | None:
    """Describe the first problem, or None."""
    return first_difference(reports) or shared_gpu(reports) or first_group_mismatch(reports)


def first_difference(reports: Sequence[RankReport]) -> str | None:
    """Describe the first difference between ranks, or None."""
    return next(_differences(sorted(reports, key=lambda report: report.rank)), None)


def shared_gpu(reports: Sequence[RankReport]) -> str | None:
    """Describe the first GPU that two ranks compute on, or None."""
    # Rank order, so that every run reports the same pair.
    owners: dict[str, RankReport] = {}
    for report in sorted(reports, key=lambda report: report.rank):
        other = owners.setdefault(report.gpu, report)
        if report.gpu and other is not report:
            return (
                f"rank {other.rank} and rank {report.rank} compute on the same GPU, {report.gpu};"
                " start one rank for each GPU, or show each rank its own (CUDA_VISIBLE_DEVICES,"
                " srun --gpus-per-task=1)"
            )
    return None


def first_group_mismatch(reports: Sequence[RankReport]) -> str | None:
    """Describe the first group that its members do not agree on, or None."""
    by_rank = {report.rank: report for report in reports}
    for report in reports:
        for axis, members in report.groups.items():
            # Both directions: the member must have the same group, and the group must contain the
            # rank.
            for member in (report.rank, *map(int, members.split(", "))):
                theirs = by_rank[member].groups.get(axis) if member in by_rank else None
                if theirs != members or str(report.rank) not in members.split(", "):
                    return (
                        f"rank {report.rank} has the ranks {members} in its {axis} group and rank"
                        f" {member} has {theirs or 'no such group'}"
                    )
    return None


def _differences(reports: Sequence[RankReport]) -> Iterator[str]:
    """Yield differences by rank. A rare value is compared with the most frequent one."""
    # Phase 1: ranks that are claimed twice. Later comparisons index reports by rank.
    for before, after in pairwise(reports):
        if before.rank == after.rank:
            yield (
                f"{before.process} and {after.process} both say that they are rank {after.rank};"
                " give every process its own"
            )
    # Phase 2: the world size. With another size the layout differs too, and this is the cause.
    sizes = [str(report.world_size) for report in reports]
    yield from _difference("world size", sizes, reports)
    # Phase 3: facts of any rank. A missing fact is a difference.
    names = {
        name: None for report in reports for name in report.facts
    }  # a set that keeps its order
    for name in names:
        values = [report.facts.get(name) for report in reports]
        yield from _difference(name, values, reports)


def _difference(
    name: str, values: Sequence[str | None], reports: Sequence[RankReport]
) -> Iterator[str]:
    usual = Counter(values).most_common(1)[0][0]  # of equally frequent ones the first rank's
    odd = next((place for place, value in enumerate(values) if value != usual), None)
    if odd is not None:
        yield (
            f"rank {reports[odd].rank} has {_shown(name, values[odd])} and rank"
            f" {reports[values.index(usual)].rank} has {_shown(name, usual)}; {_SAMENESS}"
        )


def _digest(values: object) -> str:
    # Twelve hex digits are enough to tell configurations apart, and fit into a message.
    whole = json.dumps(values, sort_keys=True, default=str).encode()
    return hashlib.sha256(whole).hexdigest()[:12]


def _shown(name: str, value: str | None) -> str:
    return f"{name} unset" if value is None else f"{name}={value}"


def _until_all_have_heard(store: Store, mine: RankReport) -> None:
    """Wait until all ranks have read the result, because the store may end with rank 0."""
    # A rank that is gone cannot be waited for. The message is delivered as far as possible.
    with suppress(dist.DistError):
        if store.add("heard", 1) == mine.world_size:
            store.set("all have heard", "")
        store.wait(["all have heard"], DELIVERY_TIMEOUT)


def _read_reports(store: Store, arrived: int) -> list[RankReport]:
    keys = [f"said/{number}" for number in range(1, arrived + 1)]
    return [RankReport(**json.loads(text)) for text in store.multi_get(keys)]


def _incomplete(store: Store, mine: RankReport) -> Exception:
    """Return the error about missing ranks, or about a difference between the present ones."""
    # Adding 0 reads the count of arrivals.
    here = _read_reports(store, store.add("arrived", 0))
    # A difference between those present is often the reason why others are missing.
    difference = first_difference(here)
    if difference is not None:
        return ConfigError(difference)
    missing = sorted(set(range(mine.world_size)) - {report.rank for report in here})
    return dist.DistStoreError(
        f"rank {mine.rank} waited in vain for rank {', '.join(map(str, missing))} of"
        f" {mine.world_size}"
    )
