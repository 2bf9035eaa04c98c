"""A trainer without torch for `DRUMLINE_RANK_MODULE`: each rank does what the test wrote down.

SCRIPT in the environment is a JSON object: global rank -> list of lines of Python.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from typing import TYPE_CHECKING

from drumline_trainer.config import ConfigError
from drumline_trainer.contract import ExitCode
from drumline_trainer.heartbeat import Heartbeat, Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from drumline_trainer.config import TrainerConfig
    from drumline_trainer.placement import Placement


def run_rank(
    *, config: TrainerConfig, placement: Placement, heartbeat: Callable[[Heartbeat], None]
) -> None:
    def beat(step: int, loss: float | None = None, phase: Phase = Phase.FORWARD) -> None:
        heartbeat(
            Heartbeat(
                generation=placement.generation,
                attempt=placement.attempt,
                rank=placement.rank,
                step=step,
                total_steps=config.steps,
                phase=phase,
                loss=loss,
                time_seconds=time.monotonic(),
            )
        )

    def done(step: int) -> None:
        beat(step, phase=Phase.DONE)

    def hang() -> None:
        threading.Event().wait()

    script = json.loads(os.environ.get("SCRIPT", "{}"))
    lines = script.get(str(placement.rank), ["beat(1)"])
    exec("\n".join(lines), {"beat": beat, "done": done, "hang": hang, "placement": placement})  # noqa: S102


def serve_store(port: int, *, address: str) -> None:
    with socket.create_server((address, port)) as listener:
        while True:
            connection, _ = listener.accept()
            connection.close()


def exit_code_of(error: BaseException) -> ExitCode:
    match error:
        case ConfigError():
            return ExitCode.CONFIG
        case ConnectionError():
            return ExitCode.PEER_LOST
        case _:
            return ExitCode.APPLICATION
