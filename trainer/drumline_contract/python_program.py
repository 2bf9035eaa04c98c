"""A command that is a Python program, in its parts; pure.

[python3, -u, train.py, --lr, 3e-4]      the interpreter with its options, a script
[/env/bin/python, -m, package.train]     the same, a module
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drumline_contract.json_fields import ContractError

MODULE_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]*([.][A-Za-z_][A-Za-z0-9_]*)*$"
"""Name of a module; the syntax of RE2 and of Python."""
MAX_MODULE_CHARS: Final = 128
INTERPRETER_PATTERN: Final = r"^(.*/)?python[0-9.]*$"
"""The first word of such a command; likewise."""
_MODULE: Final = re.compile(MODULE_PATTERN)
_INTERPRETER: Final = re.compile(INTERPRETER_PATTERN)
_OPTION: Final = re.compile(r"^-[BEIOPSsu]+$")
"""Options of the interpreter that have no value."""
_SHOWN_CHARS: Final = 80


def is_module_name(text: str) -> bool:
    """Return whether the text has the form of an importable module name."""
    return len(text) <= MAX_MODULE_CHARS and _MODULE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonProgram:
    """The parts of a command that runs a Python program."""

    interpreter: tuple[str, ...]
    """With its options."""
    target: tuple[str, ...]
    """`(script,)` or `("-m", module)`."""
    arguments: tuple[str, ...]

    @classmethod
    def parse(cls, command: Sequence[str]) -> PythonProgram:
        """Read a command.

        Raises:
            ContractError: it is another program, or Python's in another form; says what to write.
        """
        if not command or not _INTERPRETER.fullmatch(command[0]):
            raise _refused("begins with", command[0] if command else "")
        options = 0
        # Only options without a value: the word behind one with a value is no script.
        while options + 1 < len(command) and _OPTION.fullmatch(command[options + 1]):
            options += 1
        begin, rest = tuple(command[: options + 1]), tuple(command[options + 1 :])
        match rest:
            case ("-m", module, *arguments) if is_module_name(module):
                return cls(interpreter=begin, target=rest[:2], arguments=tuple(arguments))
            case (script, *arguments) if script.endswith(".py") and not script.startswith("-"):
                return cls(interpreter=begin, target=rest[:1], arguments=tuple(arguments))
            case _:
                raise _refused("goes on with", rest[0] if rest else "")

    @property
    def own_arguments(self) -> tuple[str, ...]:
        """All that stands behind the interpreter and its options."""
        return (*self.target, *self.arguments)


def _refused(where: str, word: str) -> ContractError:
    return ContractError(
        "preload: the command must be a Python program, such as [python3, -u, train.py] or"
        f" [python3, -m, package.train], and this one {where} {word[:_SHOWN_CHARS]!r}; write it"
        " so, or remove preload"
    )
