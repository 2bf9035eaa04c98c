"""What the zygote is asked for a store: whose connections it hears."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from drumline_agent.processes import rank_main
from drumline_agent.processes.rank_main import store_request
from drumline_agent.processes.store_process import peers_of
from drumline_contract import GenerationRecord, Member


def a_record(*addresses: str) -> GenerationRecord:
    members = tuple(
        Member(index=index, pod_uid=f"p{index}", address=address, host=f"j-{index}", ranks=1)
        for index, address in enumerate(addresses)
    )
    return GenerationRecord(job_uid="job", generation=1, epoch=1, members=members)


@pytest.mark.parametrize(
    ("addresses", "peers"),
    [
        (("10.0.0.9", "10.0.0.7"), ["10.0.0.7/32", "10.0.0.9/32"]),
        (("fd00::9", "fd00::7"), ["fd00::7/128", "fd00::9/128"]),
        (("10.0.0.9", "fd00::7"), ["10.0.0.9/32"]),
        (("pod-0", "pod-1"), []),
    ],
)
def test_the_members_of_the_record_are_heard(addresses: tuple[str, ...], peers: list[str]) -> None:
    assert peers_of(a_record(*addresses)) == peers


class Served(Exception):  # noqa: N818 - stands for a server that never returns
    pass


@pytest.mark.parametrize("knows_peers", [True, False])
def test_a_module_of_before_the_peers_serves_without_them(*, knows_peers: bool) -> None:
    served: list[dict[str, Any]] = []
    module: Any = ModuleType("mine")

    def old(port: int, *, address: str) -> None:
        served.append({"port": port, "address": address})
        raise Served

    def new(port: int, *, address: str, peers: list[str]) -> None:
        served.append({"port": port, "address": address, "peers": peers})
        raise Served

    module.serve_store = new if knows_peers else old
    order = store_request("10.0.0.7", port=29500, peers=["10.0.0.7/32"])
    with pytest.raises(Served):
        rank_main.serve_store(module, order)
    more = {"peers": ["10.0.0.7/32"]} if knows_peers else {}
    assert served == [{"port": 29500, "address": "10.0.0.7", **more}]
