"""The checks over Gloo: every pod is measured with two partners, and rank 0 says what was found."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from multiprocessing.connection import Connection

from drumline_agent.rank_protocol.placement import Placement
from drumline_trainer.node_check.options import CheckOptions
from drumline_trainer.node_check.program import check_rank
from tests.gloo.gang import GangStarter

SMALL = CheckOptions(matrix=32, memory=4096, message=1024, repeats=2)


def check(placement: Placement, pipe: Connection) -> None:
    """Each rank is a pod of its own."""
    alone = replace(placement, local_rank=0, local_world_size=1)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = check_rank(alone, options=SMALL)
    pipe.send((code, printed.getvalue()))


def test_pods_check_themselves_and_each_other(gangs: GangStarter) -> None:
    with gangs.gang(check, world_size=4) as gang:
        results = gang.results()
    assert [code for code, _ in results] == [0, 0, 0, 0]
    assert [text for _, text in results[1:]] == ["", "", ""]
    checked = json.loads(results[0][1])
    assert checked["nodeCheck"] == 1
    assert [member["index"] for member in checked["members"]] == [0, 1, 2, 3]
    for member in checked["members"]:
        assert "wrong" not in member["failed"]  # how fast they were is this machine's business
        assert member["memory_gbps"] >= 0
        assert len(member["pair_gbps"]) == 2
