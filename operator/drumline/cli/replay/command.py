"""`drumline replay FILE`: decide a captured cycle again and say whether the answer is the same."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from drumline.cli import command
from drumline.cli.command import Commands, Output
from drumline.cli.errors import BadInput

if TYPE_CHECKING:
    from drumline.scheduling.capture import Capture

_DESCRIPTION: Final = """\
Decide a captured cycle again, with this program's engine, and compare. The exit code is 0 when the
decisions are the same to the last word, and 1 when they differ: the differences are printed.

The operator writes a capture of its next cycle to /tmp/drumline-capture.json when it gets SIGUSR1:
  kubectl exec -n drumline-system deploy/drumline-operator -- sh -c 'kill -USR1 1'
  kubectl exec -n drumline-system deploy/drumline-operator -- cat /tmp/drumline-capture.json
"""


def add(commands: Commands) -> None:
    """Add the subcommand."""
    replay = command.add(
        commands,
        "replay",
        run=run,
        summary="decide a captured cycle again and compare",
        description=_DESCRIPTION,
    )
    replay.add_argument("capture", metavar="FILE", help="a capture; - is standard input")
    replay.add_argument(
        "-o",
        "--output",
        choices=("text", "table", "wide"),
        default="text",
        help="text: only whether they differ, and in what; table, wide: what was decided now, too",
    )


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The comparison, and the decisions where they are asked for.

    Raises:
        BadInput: the file is no capture.
    """
    del environment
    from drumline.cli.decide.job_decisions import lines  # noqa: PLC0415
    from drumline.cli.decide.table import table  # noqa: PLC0415
    from drumline.cli.replay.differences import differences  # noqa: PLC0415 - `--help` needs none of it
    from drumline.scheduling.cycle import decide  # noqa: PLC0415

    was = _read(chosen.capture)
    decisions = decide(snapshot=was.snapshot, pending=was.pending, policy=was.policy, now=was.now)
    told = ""
    if chosen.output != "text":
        verdicts = lines(decisions, snapshot=was.snapshot, pending=was.pending)
        told = table(verdicts, now=was.now, wide=chosen.output == "wide") + "\n"
    found = differences(was.decisions, decisions)
    if not found:
        return Output(text=f"{told}the same decisions as captured: {_count(was)}\n")
    head = f"{len(found)} differences from what was captured ({was.program or 'no version'}):\n"
    return Output(text=told + head + "".join(f"  {one}\n" for one in found), exit_code=1)


def _count(capture: Capture) -> str:
    made = capture.decisions
    return (
        f"{len(made.placed)} placed, {len(made.resized)} resized, {len(made.preemptions)}"
        f" preemptions, {len(made.moves)} moves, {len(made.blocked)} waiting"
    )


def _read(name: str) -> Capture:
    from drumline.cli.formatting import plain  # noqa: PLC0415
    from drumline.cli.manifests import contents, line_in, shown  # noqa: PLC0415
    from drumline.scheduling.capture import CaptureError, decode  # noqa: PLC0415

    text, _ = contents(name)
    document = text.encode()
    try:
        return decode(document)
    except CaptureError as error:
        before = document[: error.byte or 0]
        line = line_in(text, error.path) if error.path else before.count(b"\n") + 1
        raise BadInput(f"{shown(name)}, line {line}: {plain(str(error))}") from None
