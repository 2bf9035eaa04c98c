"""Rendezvous of the ranks of one membership: first with the store, then with each other.

All keys in the store carry the prefix `generation.attempt`, so ranks of different attempts never
join each other. A wait in here ends when the connections of this process are closed
(`recovery.abort`); where there is no connection yet, `check` is called in between. So a rank is
never stuck in a gang that will not be complete.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import Env
from drumline_trainer.host.network import interface_of
from drumline_trainer.preflight import NCCL2_VARIABLE, agree
from drumline_trainer.sharding.gpus import identity_of

JOIN_TIMEOUT = timedelta(minutes=5)
"""Longest wait of a rank for the store, and for the other ranks to join."""
CONNECT_TIMEOUT = timedelta(seconds=1)
"""Duration of one attempt to reach the store. Then `check` is called."""
COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""Longest wait of a collective for a silent peer. Agents detect hangs earlier by heartbeats."""


def join(
    placement: Placement,
    *,
    device: torch.device,
    check: Callable[[], None] = lambda: None,
    facts: Mapping[str, str] | None = None,
    groups: Mapping[str, Sequence[int]] | None = None,
) -> None:
    """Connect to the store and to every other rank: afterwards collectives work.

    Args:
        placement: which rank this is and where the store answers.
        device: decides the backend.
        check: raises once this membership has ended.
        facts: what must be equal on all ranks (`agreement.environment_facts`); None, on all ranks:
            nothing is compared.
        groups: ranks of this rank's groups (`agreement.groups_of`).

    Raises:
        ConfigError: ranks have different facts or the same GPU, or do not agree on a group.
        OSError: the placement's address is not on this machine.
        torch.distributed.DistNetworkError: the store does not answer.
    """
    address = placement.address or os.environ.get(Env.POD_IP, "")
    if address:
        # A pod's host name need not resolve, and Gloo would fall back to loopback or fail: both
        # backends take an interface name from the environment, which every torch version reads.
        interface = interface_of(address)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")
    # Keys of other attempts are invisible under this prefix.
    membership = f"{placement.generation}.{placement.attempt}"
    store = PrefixStore(membership, _connect(placement, check=check))
    # Differences must show before the first collective, which would hang on them.
    if facts is None:
        _wait_for_all(store, world_size=placement.world_size)
    else:
        agree(
            store,
            rank=placement.rank,
            world_size=placement.world_size,
            facts=facts,
            groups=groups or {},
            gpu=identity_of(device),
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
        prefer_established_nccl()
    # without a `device_id`: communicators are made by the first collective, which an abort ends; a
    # wait for one that is made here nothing could call off (docs/decisions/0060)
    dist.init_process_group(
        backend_of(device),
        store=store,
        rank=placement.rank,
        world_size=placement.world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )


def backend_of(device: torch.device) -> str:
    """Return the backend of collectives for tensors of this device."""
    return "nccl" if device.type == "cuda" else "gloo"


def prefer_established_nccl() -> None:
    """Select ProcessGroupNCCL for torch's backend `nccl`, unless the environment selects another.

    Since torch 2.15 the name selects ProcessGroupNCCL2. That class creates communicators at once,
    reports nothing to torch's NCCL flight recorder, and does not group aborts. Torch reads the
    variable when the name is first used.
    """
    os.environ.setdefault(NCCL2_VARIABLE, "0")


def _connect(placement: Placement, *, check: Callable[[], None]) -> TCPStore:
    """Connect to the store as soon as it listens. PyTorch's own wait cannot be cancelled."""
    give_up = time.monotonic() + JOIN_TIMEOUT.total_seconds()
    while True:
        check()
        try:
            store = TCPStore(
                placement.store_host,
                placement.store_port,
                is_master=False,
                wait_for_workers=False,
                timeout=CONNECT_TIMEOUT,
            )
        except dist.DistNetworkError:
            if time.monotonic() > give_up:
                raise
        else:
            store.set_timeout(JOIN_TIMEOUT)
            return store


def _wait_for_all(store: PrefixStore, *, world_size: int) -> None:
    """Wait for all ranks in the store: Gloo's own wait for a rank that died cannot be cancelled."""
    if store.add("arrived", 1) == world_size:
        store.set("all", "")
    store.wait(["all"], JOIN_TIMEOUT)
