"""Runs `drumline mcp`: answers an agent on standard input and output until its end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence

from drumline_cli import commands
from drumline_cli.arguments import parser
from drumline_cli.commands import Output
from drumline_cli.mcp.server import answers


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """Serve until standard input ends; every call uses the chosen context and kubeconfig."""
    read = parser("drumline").parse_args

    def call(words: Sequence[str]) -> str:
        asked = read(words)
        for name in ("context", "kubeconfig", "act_as", "act_as_uid", "act_as_groups"):
            setattr(asked, name, getattr(chosen, name))
        return commands.run(asked, environment).text

    for answer in answers(sys.stdin, call):
        sys.stdout.write(answer)
        sys.stdout.flush()
    return Output(text="")
