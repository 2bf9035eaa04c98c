"""Ranks that hang on the stand-in say how far they are, and the right one is blamed."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline_agent.leader.hang_blame import Blame, HangCause, blame
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import CollectivesReported
from drumline_agent.rank_protocol.orders import ReportCollectives
from tests.gloo.gang import GangStarter
from tests.gloo.standin import Fault, StandIn
from tests.gloo.test_recovery import RANKS, config_of

MODULE = "tests.gloo.nccl.rank"
CULPRIT = 1
AT_REST = 5
"""Verdicts in a row."""


def verdict(gang: StandIn, *, silent: bool) -> Blame | None:
    """Ask all ranks how far they are, as agents do; who stands still altogether says nothing."""
    asked = set(gang.ranks) - ({CULPRIT} if silent else set())
    known = {}
    for number in asked:
        gang.ranks[number].tell(ReportCollectives(generation=1, attempt=0))
        word = gang.ranks[number].hear(lambda word: isinstance(word, CollectivesReported))
        assert isinstance(word, CollectivesReported)
        known[number] = word.progress
    return blame(known, ranks=gang.ranks)


@pytest.mark.extended(keep=2, of="the stand-in for NCCL")
@pytest.mark.parametrize(
    "case",
    [
        ("device hangs", Phase.BACKWARD, HangCause.DEVICE, (CULPRIT,)),
        ("links are lost", Phase.BACKWARD, HangCause.LINK, (0, 1, 2)),
        ("stands still", Phase.DATA, HangCause.PROCESS, (CULPRIT,)),
        ("stands still", Phase.CHECKPOINT, HangCause.PROCESS, (CULPRIT,)),
        ("SIGSTOP", Phase.BACKWARD, HangCause.SILENT, (CULPRIT,)),
    ],
    ids=lambda case: f"{case[0]} in {case[1]}",
)
def test_the_culprit_is_blamed(
    gangs: GangStarter, tmp_path: Path, case: tuple[str, Phase, HangCause, tuple[int, ...]]
) -> None:
    """Agents judge once nothing has moved for a while; here, from the beginning, until the verdict
    stays. A wrong one at rest never ends."""
    kind, phase, cause, ranks = case
    step = 8 if phase is Phase.CHECKPOINT else 6
    folder, config = tmp_path / "run", config_of(tmp_path)
    with StandIn(gangs, config, world_size=RANKS, folder=folder, module=MODULE) as gang:
        gang.start([Fault(kind=kind, rank=CULPRIT, step=step, phase=phase)])
        for rank in gang.ranks.values():
            rank.hear(lambda word: isinstance(word, Heartbeat) and word.step == step)
        right = 0
        while right < AT_REST:
            judged = verdict(gang, silent=kind == "SIGSTOP")
            same = judged is not None and (judged.cause, judged.ranks) == (cause, ranks)
            right = right + 1 if same else 0
