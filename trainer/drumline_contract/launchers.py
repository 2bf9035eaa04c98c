"""Detection of launchers such as torchrun, which start the ranks of a pod themselves; pure.

    [torchrun, train.py]                                  yes
    [python3, -m, torch.distributed.run, train.py]        yes
    [env, OMP_NUM_THREADS=1, nice, accelerate, launch]    yes: env and nice only prepare
    [python3, train.py]                                   no
    [bash, run.sh]                                        unknown: a script may do anything

If an agent starts a launcher once per GPU, the pod trains one copy of the model per GPU.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

LAUNCHERS: Final = frozenset(
    (
        *("accelerate", "axolotl", "colossalai", "composer", "deepspeed", "horovodrun"),
        *("llamafactory-cli", "mpiexec", "mpiexec.hydra", "mpirun", "orterun", "prterun", "srun"),
        "torchrun",
    )
)
"""Programs that start ranks themselves."""
LAUNCHER_MODULES: Final = frozenset(
    (
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("accelerate.commands.accelerate_cli", "composer.cli.launcher", "colossalai.cli"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner"),
    )
)
"""Modules that start ranks after `python -m`."""
SHELLS: Final = frozenset(("ash", "bash", "dash", "fish", "ksh", "sh", "zsh"))
_PYTHON: Final = re.compile(r"(?:python|pypy)[0-9.]*t?")
_MODULE_OPTION: Final = re.compile(r"-[BEIOPSsu]*m(.*)")
_PYTHON_VALUES: Final = frozenset(("-W", "-X", "--check-hash-based-pycs"))
"""Options of the interpreter whose value is the next word."""
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SHELL_SYNTAX: Final = re.compile(r"[;&|<>()`\n]|\$\(")
_CONDA: Final = frozenset(("-n", "--name", "-p", "--prefix", "--cwd"))
_UV: Final = frozenset(
    ("--with", "--python", "-p", "--project", "--directory", "--extra", "--from")
)
_NO_VALUES: Final = frozenset[str]()
_WRAPPERS: Final = {
    "env": frozenset(("-u", "--unset", "-C", "--chdir")),
    "nice": frozenset(("-n", "--adjustment")),
    "ionice": frozenset(("-c", "-n", "--class", "--classdata")),
    "numactl": frozenset(("-N", "-m", "-C", "-i", "-P", "-p")),
    "taskset": _NO_VALUES,
    "chrt": _NO_VALUES,
    "timeout": frozenset(("-k", "-s", "--kill-after", "--signal")),
    "stdbuf": frozenset(("-i", "-o", "-e")),
    "nohup": _NO_VALUES,
    "setsid": _NO_VALUES,
    "time": frozenset(("-f", "-o")),
    "tini": frozenset(("-p", "-e")),
    "dumb-init": _NO_VALUES,
    "exec": frozenset(("-a",)),
}
"""Programs that prepare something and run the command behind their own words. The values are the
options whose value is the next word."""
_RUNNERS: Final = {
    "nsys": frozenset(("-o", "-t", "-w", "-s")),
    "uv": _UV,
    "uvx": _UV,
    "poetry": frozenset(("-C", "-P", "--directory", "--project")),
    "pipenv": _NO_VALUES,
    "pdm": frozenset(("-p",)),
    "rye": _NO_VALUES,
    "pixi": frozenset(("-e", "--environment", "--manifest-path")),
    "conda": _CONDA,
    "mamba": _CONDA,
    "micromamba": _CONDA,
}
"""Runners that start with a subcommand, and their options that take a value."""
_SUBCOMMANDS: Final = frozenset(("run", "exec", "profile"))
_LEADING_WORDS: Final = {"taskset": 1, "timeout": 1, "chrt": 1}
"""Number of positional words before the command: a mask, a duration or a priority."""
_SHELL_SCRIPTS: Final = (".sh", ".bash", ".zsh")
_MAX_DEPTH: Final = 16


def starts_ranks(command: Sequence[str]) -> bool | None:
    """Return whether a command is a launcher; None: a shell runs something unknown."""
    launcher = launcher_of(command)
    return None if launcher is None else bool(launcher)


def launcher_of(command: Sequence[str]) -> str | None:
    """Return the launcher that a command starts; empty without one; None where it is unknown.

    Args:
        command: program and arguments.
    """
    words = list(command)
    # The bound ends chains of wrappers that would never end otherwise.
    for _ in range(_MAX_DEPTH):
        # VAR=value in front of a command, as in a shell.
        while words and _ASSIGNMENT.match(words[0]):
            words = words[1:]
        program = PurePosixPath(words[0]).name if words else ""
        if program in LAUNCHERS:
            return program
        if _PYTHON.fullmatch(program):
            return _launcher_of_python(words[1:])
        if program in SHELLS:
            inner = _shell_command(words[1:])
            # A script may start ranks or not, so the answer is unknown.
            if inner is None:
                return None
            words = inner
        elif program in _WRAPPERS or program in _RUNNERS:
            words = _behind(program, words[1:])
        elif program.endswith(_SHELL_SCRIPTS):
            return None
        else:
            return ""
    return None


def _launcher_of_python(words: Sequence[str]) -> str:
    at = 0
    while at < len(words):
        word = words[at]
        # Options may be joined: -um is -u and -m.
        if module := _MODULE_OPTION.fullmatch(word):
            name = module[1] or (words[at + 1] if at + 1 < len(words) else "")
            return name if name.removesuffix(".__main__") in LAUNCHER_MODULES else ""
        if not word.startswith("-"):
            name = PurePosixPath(word).name
            # A path to a launcher's file counts as its module.
            return name if name in LAUNCHERS else _module_of_file(word)
        at += 2 if word in _PYTHON_VALUES else 1
    return ""


def _module_of_file(path: str) -> str:
    """Return the launcher's module that a path to its file means; empty otherwise."""
    dotted = path.removesuffix(".py").replace("/", ".")
    matches = (module for module in LAUNCHER_MODULES if dotted.endswith(f".{module}"))
    return next(matches, "")


def _shell_command(words: Sequence[str]) -> list[str] | None:
    """Return the one command that a shell is given with -c; None: a script, or several."""
    for at, word in enumerate(words):
        if not word.startswith(("-", "+")):
            return None
        # -c can be joined with other options, as in -lc.
        if "c" in word and not word.startswith("--"):
            text = words[at + 1] if at + 1 < len(words) else ""
            return None if _SHELL_SYNTAX.search(text) else _split(text) or None
    return None


def _behind(program: str, words: Sequence[str]) -> list[str]:
    """Return the command that a wrapper or a runner starts."""
    values = _RUNNERS.get(program) or _WRAPPERS.get(program, _NO_VALUES)
    at, leading = 0, _LEADING_WORDS.get(program, 0)
    while at < len(words):
        word = words[at]
        # Behind -- everything is the command.
        if word == "--":
            return list(words[at + 1 :])
        if program == "env" and word in ("-S", "--split-string"):
            text = words[at + 1] if at + 1 < len(words) else ""
            return [*(_split(text) or []), *words[at + 2 :]]
        if word in values:
            at += 2
        elif word.startswith("-") or (program == "env" and _ASSIGNMENT.match(word)):
            at += 1
        # Some wrappers have a positional word of their own first.
        elif leading:
            at, leading = at + 1, leading - 1
        elif program in _RUNNERS and word in _SUBCOMMANDS:
            at += 1
        else:
            break
    return list(words[at:])


def _split(text: str) -> list[str] | None:
    try:
        return shlex.split(text)
    except ValueError:
        return None
