"""A process that has imported a script's modules and becomes that script on request.

    python standby.py DESCRIPTOR torch,transformers train.py --epochs 3
    python standby.py DESCRIPTOR torch -m package.train --epochs 3

An agent starts it with the interpreter, the options and the environment of a rank, while that rank
runs. It imports the modules, reports it on the socket DESCRIPTOR, and waits. The request is one
line of JSON with the differences from the rank: `argv`, `cwd`, and `environ` with the variables to
set and (null) to remove. Otherwise the script runs as in a new interpreter.

It never forks. Libraries start threads when they are imported, and a forked child would have their
locks without them. So each standby starts once, and the agent then starts a new standby.

Started by its path and not with -m, which would import the package and change sys.path.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import runpy
import socket
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

MAX_REASON_CHARS = 500
_READ_BYTES = 65536


def main() -> None:
    """Import the modules, wait, and become the script."""
    descriptor, modules, *command = sys.argv[1:]
    is_module = command[0] == "-m"
    if not _has_safe_path():
        sys.path[0] = str(Path.cwd() if is_module else Path(command[0]).resolve().parent)
    _set_arguments(command)
    with socket.socket(fileno=int(descriptor)) as channel:
        os.set_inheritable(channel.fileno(), False)
        reason = _import(modules.split(","))
        sys.stdout.flush()
        sys.stderr.flush()
        _say(channel, {"ready": not reason, "reason": reason})
        order = None if reason else _hear(channel)
        if order is None:
            sys.exit(1 if reason else 0)  # nobody needs it any more
        _say(channel, {"taken": True})
    os.chdir(order["cwd"])
    for name, value in order["environ"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    _set_arguments(order["argv"])
    # As in the interpreter itself, this module stays __main__ to the end: threads and exit handlers
    # may look for it after the script's last line.
    sys.modules["__main__"] = types.ModuleType("__main__")
    if is_module:
        # What the interpreter calls for -m; `run_module` would take __main__ away afterwards.
        runpy._run_module_as_main(order["argv"][1])  # noqa: SLF001 # type: ignore[attr-defined]
    else:
        _run_script(order["argv"][0])


def _has_safe_path() -> bool:
    """Return whether the interpreter does not add the script's folder to sys.path (-I, -P)."""
    return bool(sys.flags.isolated or getattr(sys.flags, "safe_path", False))


def _set_arguments(command: list[str]) -> None:
    """Set `sys.argv` for `[script, argument...]` or `[-m, module, argument...]`."""
    sys.argv = ["-m", *command[2:]] if command[0] == "-m" else list(command)


def _import(modules: list[str]) -> str:
    """Import the modules. Return why the process cannot be used, or empty text."""
    name = ""
    try:
        for name in modules:
            importlib.import_module(name)
    except BaseException as error:  # noqa: BLE001 - whatever an import does, the agent must know
        return f"import {name}: {type(error).__name__}: {error}"[:MAX_REASON_CHARS]
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return (
            "the import created a CUDA context, which would use GPU memory while the process waits"
        )
    return ""


def _say(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.sendall(json.dumps(message).encode() + b"\n")


def _hear(channel: socket.socket) -> dict[str, Any] | None:
    """Return the single message, or None if the agent has closed its end."""
    body = b""
    while not body.endswith(b"\n"):
        chunk = channel.recv(_READ_BYTES)
        if not chunk:
            return None
        body += chunk
    order: dict[str, Any] = json.loads(body)
    return order


def _run_script(path: str) -> None:
    """Run a file as the interpreter does: `__file__` is absolute, whatever `sys.argv[0]` is."""
    script = str(Path.cwd() / path)
    try:
        with io.open_code(script) as file:
            source = file.read()
    except OSError as error:
        sys.stderr.write(f"{sys.executable}: can't open file {script!r}: {error}\n")
        sys.exit(2)
    main_module = sys.modules["__main__"]
    main_module.__file__ = script
    main_module.__dict__["__cached__"] = None
    main_module.__loader__ = SourceFileLoader("__main__", script)
    code = compile(source, script, "exec", dont_inherit=True)
    exec(code, main_module.__dict__)  # noqa: S102 - the user's script, as the user asked for


if __name__ == "__main__":
    main()
