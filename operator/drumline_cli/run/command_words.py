"""Mistakes in the command of `drumline run` that only its pods would show; pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Final

from drumline_cli.errors import BadInput
from drumline_contract.launchers import LAUNCHERS, SHELLS, launcher_of

_SCRIPTS: Final = (".py", ".sh", ".bash")
_TORCHRUN: Final = frozenset(("torchrun", "torch.distributed.run", "torch.distributed.launch"))
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


def check_words(command: Sequence[str], *, nodes: int) -> None:
    """Refuse a command that only a shell understands, or a launcher of another number of pods.

    Args:
        command: program and arguments.
        nodes: number of pods.

    Raises:
        BadInput: no program has this name, or torchrun would wait for other pods.
    """
    program = command[0]
    if _ASSIGNMENT.match(program):
        raise BadInput(f"{program}: set a variable of the ranks with -e {program} before the --")
    if re.search(r"\s", program):
        raise BadInput(
            f"{program!r} is one word; remove the quotes, so that the program is the first word"
        )
    if program == "cd" or "&&" in command:
        raise BadInput(
            "no shell reads the command; write bash -c 'COMMANDS' and --launch PerGpu or PerPod"
        )
    if launcher_of(command) in _TORCHRUN:
        _check_nodes(command, nodes=nodes)


def script_of(command: Sequence[str]) -> str:
    """Return the script that a command starts; empty if the words do not show one."""
    program = PurePosixPath(command[0]).name
    words = iter(command[1:])
    if program in LAUNCHERS:
        # The options of launchers have no scripts as values. -m is followed by a module.
        script = next((word for word in words if word == "-m" or word.endswith(".py")), "")
    elif program.startswith("python"):
        script = _script_of_python(words)
    elif program in SHELLS:
        script = next(words, "")
    else:
        script = command[0]
    is_script = script.endswith(_SCRIPTS) or script.startswith("./")
    return script if is_script and not script.startswith("/") else ""


def _script_of_python(words: Iterator[str]) -> str:
    for word in words:
        if word in ("-W", "-X"):
            next(words, "")
        # -m is a module and -c a program. Other options have no value.
        elif word.startswith(("-m", "-c")) or not word.startswith("-"):
            return word
    return ""


def _check_nodes(command: Sequence[str], *, nodes: int) -> None:
    words = iter(command)
    # A shell or another spelling may hide the launcher. Its options are not read then.
    for word in words:
        if PurePosixPath(word).name in _TORCHRUN:
            break
    for word in words:
        # Behind the script or its module stand the user's own options.
        if word in ("-m", "--module") or word.endswith(".py"):
            return
        option, _, value = word.replace("_", "-").partition("=")
        if option == "--standalone" and nodes > 1:
            raise BadInput(f"--standalone is for one pod, and the job has {nodes}; leave it out")
        if option == "--nnodes":
            value = value or next(words, "")
            # MIN:MAX and $(NNODES) fit any number.
            if value.isdecimal() and int(value) != nodes:
                raise BadInput(
                    f"--nnodes {value} differs from --nodes {nodes}; leave it out, because"
                    " torchrun reads PET_NNODES"
                )
