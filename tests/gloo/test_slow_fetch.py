"""A rank that fetches files for long says so, and its agent does not take it for hung."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path

from drumline_agent.rank_protocol.messages import RankMessage
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract.buckets.apart import answer_apart
from drumline_contract.config import TrainerConfig
from drumline_trainer.rank import run, run_rank
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter

# It ends at the third heartbeat since it began, and otherwise after a minute with an error.
FETCH = """
import sys, time
from pathlib import Path

beats = Path(sys.argv[1])
began = beats.stat().st_size
for _ in range(3000):
    if beats.stat().st_size >= began + 3:
        sys.exit()
    time.sleep(0.02)
sys.exit(1)
"""


def fetch_and_train(
    placement: Placement, pipe: Connection, config: TrainerConfig, beats: Path
) -> None:
    train = run.train

    def fetch_first(*arguments: object, **named: object) -> None:
        answer_apart("slow_fetch", str(beats))
        train(*arguments, **named)  # pyright: ignore[reportArgumentType] - as they came

    def heartbeat(_: RankMessage) -> None:
        with beats.open("a") as file:
            file.write(".")

    run.train = fetch_first  # in this process, which ends with the rank
    os.environ["PYTHONPATH"] = os.pathsep.join([str(beats.parent), *sys.path])
    run_rank(config=config, placement=placement, heartbeat=heartbeat, write=lambda _: None)
    pipe.send("trained")


def test_heartbeats_go_on_while_a_rank_fetches(gangs: GangStarter, tmp_path: Path) -> None:
    (tmp_path / "slow_fetch.py").write_text(FETCH)
    beats = tmp_path / "beats"
    beats.touch()
    config = small(tmp_path / "text", steps=1)
    assert gangs.run(fetch_and_train, config, beats, world_size=1) == ["trained"]
