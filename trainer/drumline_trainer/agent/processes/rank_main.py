"""The first and last lines of a process forked by the zygote: a rank, or the rendezvous store.

The process becomes the leader of a session of its own, prints into the pipe it was given, sees the
environment a rank expects, and leaves by `os._exit` with a code of `contract.ExitCode`: the
zygote's own clean-up must not run in it, and no teardown of a library can hang it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import traceback
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn

from drumline_trainer.config import ConfigError, TrainerConfig
from drumline_trainer.contract import Env, ExitCode
from drumline_trainer.host import prctl
from drumline_trainer.rank_protocol.control import Control
from drumline_trainer.rank_protocol.placement import Placement

if TYPE_CHECKING:
    from types import ModuleType

    from drumline_trainer.rank_protocol.heartbeat import RankMessage

RETURNED = json.dumps({"returned": True})
"""The last line of a rank that came to its end, which an exit code of 0 alone does not say."""
HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that the zygote blocks and its children take again."""


def store_request(address: str, *, port: int) -> dict[str, Any]:
    """What the agent asks the zygote for to get a store."""
    return {"kind": "store", "address": address, "port": port}


def rank_request(placement: Placement) -> dict[str, Any]:
    """What the agent asks the zygote for to get a rank."""
    return {"kind": "rank", "placement": placement.to_json()}


def preload(module: ModuleType) -> None:
    """Import in the parent of the ranks what this job's configuration has each of them import."""
    imports = getattr(module, "preload", None)  # a trainer of other makers need not have it
    with suppress(ConfigError):  # the ranks say what is wrong with it
        if imports is not None:
            imports(_config())


def run_child(
    *, module: ModuleType, order: dict[str, Any], descriptors: list[int], parent_pid: int
) -> NoReturn:
    """Turn this freshly forked process into what `order` says; never returns."""
    code: int = ExitCode.APPLICATION
    try:
        _stand_alone(output=descriptors[0], parent_pid=parent_pid)
        if order["kind"] == "store":
            module.serve_store(order["port"], address=order["address"])
            code = ExitCode.OK
        else:
            placement = Placement.from_json(order["placement"])
            code = _run_rank(module, placement, said=descriptors[1], orders=descriptors[2])
    except BaseException:  # noqa: BLE001 - supervisor: nothing may unwind into the zygote's frames
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _stand_alone(*, output: int, parent_pid: int) -> None:
    os.setsid()
    prctl.die_with_parent(parent_pid)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until somebody writes down what this rank does
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a descriptor is wanted, not a path
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    faulthandler.enable()


def _run_rank(module: ModuleType, placement: Placement, *, said: int, orders: int) -> int:
    os.environ.update(_environment(placement))

    def send(word: RankMessage) -> None:
        _write_line(said, word.to_json())

    try:
        module.run_rank(
            config=_config(), placement=placement, heartbeat=send, control=Control(orders)
        )
    except BaseException as error:  # noqa: BLE001 - supervisor: the exit code says what it was
        traceback.print_exc()
        _write_line(said, json.dumps({"error": _one_line(error)}))
        return module.exit_code_of(error)
    _write_line(said, RETURNED)
    return ExitCode.OK


def _one_line(error: BaseException) -> str:
    """Type and first line: what follows in torch's messages is a stack, and is in the output."""
    said = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {said}"[:2048]


def _config() -> TrainerConfig:
    try:
        return TrainerConfig.from_dict(json.loads(os.environ.get(Env.CONFIG) or "{}"))
    except ValueError as error:
        raise ConfigError(f"{Env.CONFIG}: {error}") from None


def _environment(placement: Placement) -> dict[str, str]:
    """What launchers of torch processes set; `env://` finds the store that the agent serves."""
    return {
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(placement.world_size),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "MASTER_ADDR": placement.store_host,
        "MASTER_PORT": str(placement.store_port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def _write_line(descriptor: int, line: str) -> None:
    os.write(descriptor, line.encode() + b"\n")
