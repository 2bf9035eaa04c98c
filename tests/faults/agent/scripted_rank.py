"""A trainer without torch for `DRUMLINE_RANK_MODULE`: each rank does what the test wrote down.

SCRIPT in the environment is a JSON object: global rank -> list of lines of Python, run again for
each attempt of a new process. They know

    placement, control         what the agent gave
    beat(step, loss, phase)    a heartbeat
    done(step)                 the last one
    hang(until, generation)    until this attempt (of this generation), else for ever; the rank
                               quiesces when interrupted, and resumes
    park(reason)               leave the gang; returns with the next placement
    say(word)                  any other word of `heartbeat`
    notice()                   the next notice, as soon as there is one
    save(step)                 answer it
    now()                      the placement of this attempt
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from drumline_agent.rank_protocol.control import Control, InterruptedByAgentError
from drumline_agent.rank_protocol.heartbeat import Heartbeat, Phase
from drumline_agent.rank_protocol.messages import NoticeSaved, Quiesced, RankMessage
from drumline_agent.rank_protocol.orders import SaveNotice
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import ExitCode
from drumline_contract.config import ConfigError, TrainerConfig


def run_rank(
    *,
    config: TrainerConfig,
    placement: Placement,
    heartbeat: Callable[[RankMessage], None],
    control: Control,
) -> None:
    now = placement

    def beat(
        step: int, loss: float | None = None, phase: Phase = Phase.FORWARD, **more: Any
    ) -> None:
        heartbeat(
            Heartbeat(
                generation=now.generation,
                attempt=now.attempt,
                rank=now.rank,
                step=step,
                total_steps=config.steps,
                phase=phase,
                loss=loss,
                time_seconds=time.monotonic(),
                **more,
            )
        )

    def park(reason: str, step: int = 0) -> Placement:
        nonlocal now
        generation, attempt = now.membership
        heartbeat(Quiesced(generation=generation, attempt=attempt, step=step, reason=reason))
        now = control.wait_for_placement()
        control.enter(now.membership)
        return now

    def done(step: int) -> None:
        beat(step, phase=Phase.DONE)

    def hang(until: int | None = None, generation: int = 0) -> None:
        interrupted = threading.Event()
        control.on_interrupt = lambda _: interrupted.set()
        while until is None or now.membership < (generation or now.generation, until):
            with suppress(InterruptedByAgentError):
                control.check()
                interrupted.wait()
            interrupted.clear()
            park("told to")

    def notice() -> SaveNotice:
        while (result := control.notice) is None:
            control.check()
            time.sleep(0.01)
        return result

    def save(step: int) -> SaveNotice:
        result = notice()
        beat(step, checkpoint_step=step, checkpoint_digest="d")
        heartbeat(NoticeSaved(notice=result.id, step=step, digest="d"))
        control.clear_notice(result.id)
        return result

    control.enter(placement.membership)
    script = json.loads(os.environ.get("SCRIPT", "{}"))
    lines = script.get(str(placement.rank), ["beat(1)"])
    known = {
        "beat": beat,
        "notice": notice,
        "save": save,
        "now": lambda: now,
        "done": done,
        "hang": hang,
        "park": park,
        "say": heartbeat,
    }
    exec("\n".join(lines), {**known, "placement": placement, "control": control})  # noqa: S102


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
        case OSError(errno=28):
            return ExitCode.STORAGE
        case _:
            return ExitCode.APPLICATION
