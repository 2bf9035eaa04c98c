"""The grammar of `drumline data`."""

from __future__ import annotations

import argparse
from typing import Final

from drumline_cli.options import whole_number

DESCRIPTION: Final = """\
Show what a run would make of records before a GPU is asked for: the tokens of the first three
documents and which of them are learned, how many documents and tokens there are, the longest, and
what is left out or wrong and why. The exit code is 2 where a run would refuse the data. Needs the
tokenizer of the model and no torch.
"""
EXAMPLES: Final = """\
examples:
  drumline data show chats.jsonl --model /models/llama-3.1-8b-instruct
  drumline data show /data/chats --pattern '**/*.jsonl' --model /models/llama --sequence-length 2048
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    command.add_argument("action", choices=("show",), help="the only one")
    command.add_argument("source", metavar="FILE", help="records or text, or a folder of them")
    command.add_argument(
        "--model", required=True, metavar="FOLDER", help="of the model, with its tokenizer.json"
    )
    command.add_argument("--pattern", metavar="GLOB", help="files of a folder; default: all")
    command.add_argument("--field", help="of records that are texts; default: text")
    command.add_argument("--chat-template", metavar="FILE|NAME", help="default: the model's own")
    command.add_argument(
        "--sequence-length",
        type=whole_number(1, 100_000_000),
        metavar="N",
        help="count documents that are longer",
    )
