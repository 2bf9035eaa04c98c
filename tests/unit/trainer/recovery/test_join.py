"""A rank joins a store that starts late, over the interface of its address."""

from __future__ import annotations

import os
import socket

import pytest
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage] - documented

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.recovery.rendezvous import join

INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def test_a_rank_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in INTERFACES:
        monkeypatch.setenv(name, "")  # so that both are removed after the test
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    tries: list[TCPStore | None] = []

    def start_before_second_try() -> None:
        late = len(tries) == 1
        tries.append(TCPStore("127.0.0.1", port, is_master=True) if late else None)

    place = Placement(rank=0, world_size=1, store_port=port, address="127.0.0.1")
    join(place, device=torch.device("cpu"), check=start_before_second_try)

    try:
        assert dist.get_world_size() == 1
        assert [os.environ[name] for name in INTERFACES] == ["lo", "=lo"]
    finally:
        dist.destroy_process_group()
