"""Runs `drumline upgrade --check CAPTURES`: what this version would decide otherwise."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from drumline import __version__
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput
from drumline_cli.formatting import clock, many
from drumline_cli.manifests import display_name
from drumline_cli.replay.command import read_capture
from drumline_cli.replay.outcomes import ChangedJob, changed_jobs
from drumline_scheduler.cycle import decide


class CapturedCycle(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One capture, decided again.

    Attributes:
        capture: its file.
        at: when it was taken (seconds since the epoch).
        program: the version that took it; empty: not known.
        waiting_jobs: how many jobs waited in it.
        changes: the jobs that fare otherwise.
    """

    capture: str
    at: float
    program: str
    waiting_jobs: int
    changes: tuple[ChangedJob, ...]


class UpgradeCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `drumline upgrade --check`.

    Attributes:
        kind: what this is.
        version: the version that decided again.
        cycles: a row for each capture.
    """

    # No default: it would be an optional field of the schema.
    kind: Literal["UpgradeCheck"]
    version: str
    cycles: tuple[CapturedCycle, ...]


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """Decide each capture again. The exit code is 1 if the decision about any job changes.

    Raises:
        BadInput: no file is given, or a file is not a capture.
    """
    names = list(_files(chosen.captures))
    if not names:
        raise BadInput("no captures; name files, or a folder with *.json")
    check = UpgradeCheck(
        kind="UpgradeCheck", version=__version__, cycles=tuple(map(_decided_again, names))
    )
    differs = any(cycle.changes for cycle in check.cycles)
    text = _as_json(check) if chosen.output == "json" else _as_text(check)
    return Output(text=text, exit_code=int(differs))


def _decided_again(name: str) -> CapturedCycle:
    was = read_capture(name)
    again = decide(replace(was.cycle, set_aside=()))
    return CapturedCycle(
        capture=display_name(name),
        at=was.now,
        program=was.program,
        waiting_jobs=len(was.pending),
        changes=changed_jobs(was.decisions, again),
    )


def _as_json(check: UpgradeCheck) -> str:
    return msgspec.json.format(msgspec.json.encode(check), indent=2).decode() + "\n"


def _as_text(check: UpgradeCheck) -> str:
    worse = sum(bool(cycle.changes) for cycle in check.cycles)
    head = f"drumline {check.version} decides {many(len(check.cycles), 'captured cycle')} again: "
    head += (
        f"the outcome differs in {worse}" if worse else ("the outcome is the same for every job")
    )
    lines = (line for cycle in check.cycles for line in _lines(cycle))
    return "".join(f"{line}\n" for line in (head, *lines))


def _lines(cycle: CapturedCycle) -> list[str]:
    """Return a line about the capture, and one for each job with another outcome."""
    jobs = many(cycle.waiting_jobs, "waiting job")
    result = f"{len(cycle.changes)} fare otherwise" if cycle.changes else "the same"
    version = cycle.program or "an unknown version"
    return [
        f"{cycle.capture}: {clock(cycle.at)} by {version}, {jobs}: {result}",
        *(f"  {each.job}: {each.before}; now {each.now}" for each in cycle.changes),
    ]


def _files(names: list[str]) -> Iterator[str]:
    for name in names:
        folder = Path(name)
        if folder.is_dir():
            yield from sorted(map(str, folder.glob("*.json")))
        else:
            yield name
