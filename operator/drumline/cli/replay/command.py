"""Runs `drumline replay FILE`: decide a captured cycle again, and compare the decisions."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from drumline.cli.decide.job_decisions import job_decisions
from drumline.cli.decide.table import table
from drumline.cli.errors import BadInput
from drumline.cli.manifests import display_name, line_in, read_text
from drumline.cli.output import Output
from drumline.cli.replay.differences import differences
from drumline.scheduling.capture import Capture, CaptureError, decode
from drumline.scheduling.cycle import decide
from drumline_trainer.contract import plain


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """The comparison, and the decisions where they are asked for.

    Raises:
        BadInput: the file is no capture.
    """
    was = read_capture(chosen.capture)
    decisions = decide(was.cycle)
    shown = ""
    if chosen.output != "text":
        rows = job_decisions(decisions, snapshot=was.snapshot, pending=was.pending)
        shown = table(rows, now=was.now, wide=chosen.output == "wide") + "\n"
    different = differences(was.decisions, decisions)
    if not different:
        return Output(text=f"{shown}the same decisions as captured: {_count(was)}\n")
    program = was.program or "no version"
    head = f"{len(different)} differences from what was captured ({program}):\n"
    return Output(text=shown + head + "".join(f"  {line}\n" for line in different), exit_code=1)


def _count(capture: Capture) -> str:
    made = capture.decisions
    return (
        f"{len(made.placed)} placed, {len(made.resized)} resized, {len(made.preemptions)}"
        f" preemptions, {len(made.moves)} moves, {len(made.blocked)} waiting"
    )


def read_capture(name: str) -> Capture:
    """The capture in a file.

    Raises:
        BadInput: it is none; names line and field.
    """
    text, _ = read_text(name)
    document = text.encode()
    try:
        return decode(document)
    except CaptureError as error:
        before = document[: error.byte or 0]
        line = line_in(text, error.path) if error.path else before.count(b"\n") + 1
        raise BadInput(f"{display_name(name)}, line {line}: {plain(str(error))}") from None
