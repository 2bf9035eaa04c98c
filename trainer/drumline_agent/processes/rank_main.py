"""The main function of a process forked by the zygote: a rank, or the rendezvous store.

The process leads a session of its own, prints into the pipe it was given, has the environment that
a rank expects, and ends by `os._exit` with a code of `contract.ExitCode`: the zygote's own clean-up
must not run in it, and no teardown of a library can hang it.
"""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from types import ModuleType
from typing import Any, NoReturn, cast

from drumline_agent.host import prctl
from drumline_agent.rank_protocol.control import Control
from drumline_agent.rank_protocol.messages import RankError, RankMessage, RankReturned
from drumline_agent.rank_protocol.placement import Placement
from drumline_contract import HUB_READERS, Env, ExitCode
from drumline_contract.config import ConfigError, TrainerConfig

HELD_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals that the zygote blocks and its children unblock."""
_LAST_ERROR = "Last error:\n"
"""Before NCCL's newest warning, in what torch says of a call that failed."""


def store_request(address: str, *, port: int, peers: Sequence[str] = ()) -> dict[str, Any]:
    """Build the zygote's request for a store. Without `peers` the store accepts every network.

    Args:
        address: IP address to bind.
        port: port to bind.
        peers: IP addresses that may connect.
    """
    return {"kind": "store", "address": address, "port": port, "peers": list(peers)}


def rank_request(placement: Placement) -> dict[str, Any]:
    """Build the zygote's request for a rank."""
    return {"kind": "rank", "placement": placement.to_json()}


def preload(module: ModuleType) -> None:
    """Import in the parent of the ranks what this job's configuration has each of them import.

    No model has any of that imported, so the folder of one is left to the ranks.
    """
    imports = getattr(module, "preload", None)  # optional in another trainer's module
    with suppress(ConfigError):  # reported by the ranks
        if imports is not None:
            imports(TrainerConfig.from_dict({**_written(), "model": {}}))


def serve_store(module: ModuleType, order: dict[str, Any]) -> None:
    """Serve the store that was requested; never returns."""
    parameters = inspect.signature(module.serve_store).parameters
    # A module of a user's own may have been written before the store knew its peers.
    known = {"peers": order["peers"]} if "peers" in parameters else {}
    module.serve_store(order["port"], address=order["address"], **known)


def run_child(
    *, module: ModuleType, order: dict[str, Any], descriptors: list[int], parent_pid: int
) -> NoReturn:
    """Run this freshly forked process as what was requested; never returns.

    Args:
        module: the rank program.
        order: request for a rank or a store.
        descriptors: pipes to the agent.
        parent_pid: process that must stay alive.
    """
    code: int = ExitCode.APPLICATION
    try:
        _become_session(output=descriptors[0], parent_pid=parent_pid)
        if order["kind"] == "store":
            serve_store(module, order)
            code = ExitCode.OK
        else:
            placement = Placement.from_json(order["placement"])
            code = _run_rank(module, placement, messages=descriptors[1], orders=descriptors[2])
    except BaseException:  # noqa: BLE001 - supervisor: nothing may unwind into the zygote's frames
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _become_session(*, output: int, parent_pid: int) -> None:
    os.setsid()
    prctl.die_with_parent(parent_pid)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until the flight recorder handles it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)
    with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - needs the descriptor
        os.dup2(nothing.fileno(), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    stdout = cast("TextIOWrapper", sys.stdout)  # typeshed: TextIO, which has no `reconfigure`
    stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable()


def _run_rank(module: ModuleType, placement: Placement, *, messages: int, orders: int) -> int:
    os.environ.update(_environment(placement))

    def send(message: RankMessage) -> None:
        _write_line(messages, message.to_json())

    try:
        module.run_rank(
            config=_config(), placement=placement, heartbeat=send, control=Control(orders)
        )
    except BaseException as error:  # noqa: BLE001 - supervisor: the exit code says what it was
        from drumline_contract.buckets.failures import StoreError  # noqa: PLC0415 - not in the agent's bundle

        code = module.exit_code_of(error)
        if code == ExitCode.PREEMPTED:  # it saved and leaves as it was asked to
            os.write(2, f"{one_line(error).partition(': ')[2]}\n".encode())
        else:
            traceback.print_exc()
        _write_line(messages, RankError(error=one_line(error)).to_json())
        refused = isinstance(error, StoreError) and not error.may_come_back
        if refused and placement.starts_first:  # a wrong name or wrong keys, and nothing to lose
            return ExitCode.CONFIG
        return code
    _write_line(messages, RankReturned().to_json())
    return ExitCode.OK


def one_line(error: BaseException) -> str:
    """Return an error's type and first line, and NCCL's last error, which names a failed device.

    torch appends a stack, which is in the output.
    """
    first, _, rest = str(error).strip().partition("\n")
    newest = rest.partition(_LAST_ERROR)[2].partition("\n")[0]
    line = f"{type(error).__name__}: {first}"
    return (f"{line} ({newest})" if newest else line)[:2048]


def _config() -> TrainerConfig:
    """Return the job's configuration, completed with the model of the folder `model_from`.

    Raises:
        ConfigError: it is not valid.
    """
    from drumline_contract.shapes.hugging_face import with_model_of_folder  # noqa: PLC0415 - not in the agent's bundle

    raw = with_model_of_folder(_written())
    try:
        return TrainerConfig.from_dict(raw)
    except ConfigError as error:
        raise ConfigError(f"{Env.CONFIG}: {error}") from None


def _written() -> dict[str, Any]:
    try:
        raw: object = json.loads(os.environ.get(Env.CONFIG) or "{}")
    except ValueError as error:
        raise ConfigError(f"{Env.CONFIG}: {error}") from None
    if not isinstance(raw, dict):
        raise ConfigError(f"{Env.CONFIG}: must be an object")
    return cast("dict[str, Any]", raw)


def _environment(placement: Placement) -> dict[str, str]:
    """Return the variables that torchrun sets, and one that names the start.

    `env://` connects to the store of the agent.
    """
    return {
        "RANK": str(placement.rank),
        "WORLD_SIZE": str(placement.world_size),
        "LOCAL_RANK": str(placement.local_rank),
        "LOCAL_WORLD_SIZE": str(placement.local_world_size),
        "MASTER_ADDR": placement.store_host,
        "MASTER_PORT": str(placement.store_port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        # Without a job nothing tells two starts apart, and each rank asks the Hub.
        HUB_READERS: placement.owner
        and f"{placement.owner}.{placement.generation}.{placement.attempt}",
    }


def _write_line(descriptor: int, line: str) -> None:
    os.write(descriptor, line.encode() + b"\n")
