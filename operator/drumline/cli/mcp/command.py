"""Runs `drumline mcp`: answers an agent on standard input and output until its end."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence

from drumline.cli.mcp.server import answers
from drumline.cli.output import Output


def run(
    chosen: argparse.Namespace,
    environment: Mapping[str, str],
    *,
    parse: Callable[[Sequence[str]], argparse.Namespace],
    execute: Callable[[argparse.Namespace, Mapping[str, str]], Output],
) -> Output:
    """Serve until standard input ends.

    Args:
        chosen: context and kubeconfig, which every call uses.
        environment: of this process.
        parse: reads a command line of ours.
        execute: runs it.
    """

    def call(words: Sequence[str]) -> str:
        asked = parse(words)
        asked.context, asked.kubeconfig = chosen.context, chosen.kubeconfig
        return execute(asked, environment).text

    for answer in answers(sys.stdin, call):
        sys.stdout.write(answer)
        sys.stdout.flush()
    return Output(text="")
