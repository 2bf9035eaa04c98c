"""Runs `drumline replay FILE`: decide a captured cycle again, and compare the decisions."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from drumline_cli.commands import Output
from drumline_cli.decide.job_decisions import job_decisions
from drumline_cli.decide.table import table
from drumline_cli.errors import BadInput
from drumline_cli.manifests import display_name, line_in, read_text
from drumline_contract import plain
from drumline_scheduler.capture import Capture, CaptureError, decode
from drumline_scheduler.cycle import decide
from drumline_scheduler.decisions import Decisions

_LONGEST: Final = 160


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """Return the comparison, and the decisions if requested.

    Raises:
        BadInput: the file is not a capture.
    """
    was = read_capture(chosen.capture)
    decisions = decide(was.cycle)
    shown = ""
    if chosen.output != "text":
        rows = job_decisions(decisions, snapshot=was.snapshot, pending=was.pending)
        shown = table(rows, now=was.now, wide=chosen.output == "wide") + "\n"
    different = differences(was.decisions, decisions)
    if not different:
        return Output(text=f"{shown}same decisions as captured: {_count(was)}\n")
    program = was.program or "no version"
    head = f"{len(different)} differences from the capture ({program}):\n"
    return Output(text=shown + head + "".join(f"  {line}\n" for line in different), exit_code=1)


def _count(capture: Capture) -> str:
    made = capture.decisions
    return (
        f"{len(made.placed)} placed, {len(made.resized)} resized, {len(made.preemptions)}"
        f" preemptions, {len(made.moves)} moves, {len(made.blocked)} waiting"
    )


def read_capture(name: str) -> Capture:
    """Return the capture in a file.

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


def differences(before: Decisions, after: Decisions) -> list[str]:
    """Return the fields that differ. Empty: the decisions are equal."""
    return [plain(line) for line in _compare("", before, after)]


def _compare(path: str, before: Any, after: Any) -> Iterator[str]:
    if before == after:
        return
    if is_dataclass(before) and type(before) is type(after):
        for field in fields(before):
            below = f"{path}.{field.name}" if path else field.name
            yield from _compare(below, getattr(before, field.name), getattr(after, field.name))
    elif all(hasattr(item, "uid") for item in (*_listed(before), *_listed(after))):
        yield from _compare_keyed(path, _listed(before), _listed(after))
    else:
        yield f"{path}: {_shown(before)}, now {_shown(after)}"


def _listed(value: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


def _compare_keyed(path: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[str]:
    """Compare two lists of decisions, matched by the uid of the job."""
    was, now = ({item.uid: item for item in side} for side in (before, after))
    for uid in [*was, *(uid for uid in now if uid not in was)]:
        key = (was.get(uid) or now[uid]).key
        if uid not in now:
            yield f"{path}[{key}]: no more"
        elif uid not in was:
            yield f"{path}[{key}]: new: {_shown(now[uid])}"
        else:
            yield from _compare(f"{path}[{key}]", was[uid], now[uid])
    shared = [uid for uid in was if uid in now]
    if shared != [uid for uid in now if uid in was]:
        yield f"{path}: in another order"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
