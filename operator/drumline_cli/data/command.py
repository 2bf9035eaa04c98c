"""Run `drumline data`: the trainer's own command, as a process, since it imports the tokenizer."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from drumline_cli.commands import Output
from drumline_cli.errors import BadInput, NotAnswered, install_extra
from drumline_contract import ExitCode
from drumline_contract.plain_text import plain

_NEEDED: Final = ("numpy", "xxhash", "jinja2", "tokenizers")
"""Packages of the trainer that its command imports; torch is none of them."""
_TAIL: Final = 600
"""Characters of what a failed command said last."""


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Show the data.

    Raises:
        BadInput: the data, the template or the model's folder cannot be used.
        NotAnswered: the trainer's command failed.
    """
    for package in _NEEDED:
        if importlib.util.find_spec(package) is None:
            raise BadInput(
                f"`drumline data` needs the package {package}."
                f" {install_extra('cli,trainer,trainer-more')}"
            )
    command = [sys.executable, "-m", "drumline_trainer", "data", chosen.action, chosen.source]
    for name in ("model", "pattern", "field", "chat_template", "sequence_length"):
        value = getattr(chosen, name)
        if value is not None:
            command.append(f"--{name.replace('_', '-')}={value}")
    if sys.stdout.isatty() and "NO_COLOR" not in environment:
        command.append("--color")
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=dict(environment)
    )
    errors = plain(done.stderr.decode(errors="replace")[-_TAIL:])
    if done.returncode == ExitCode.CONFIG:
        raise BadInput(errors.removeprefix("drumline_trainer: "))
    if done.returncode:
        raise NotAnswered(f"the trainer's command failed: {errors or done.returncode}")
    return Output(text=done.stdout.decode())
