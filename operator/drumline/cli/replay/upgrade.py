"""Runs `drumline upgrade --check CAPTURES`: what this version would decide otherwise."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from drumline import __version__
from drumline.cli.errors import BadInput
from drumline.cli.formatting import clock, many
from drumline.cli.manifests import display_name
from drumline.cli.output import Output
from drumline.cli.replay.command import read_capture
from drumline.cli.replay.outcomes import changed_jobs
from drumline.scheduling.cycle import decide
from drumline.scheduling.invariants import violations


def run(chosen: argparse.Namespace) -> Output:
    """Each capture, decided again. The exit code is 1 if a job fares otherwise in one of them.

    Raises:
        BadInput: a file is no capture, or there is none.
    """
    names = list(_files(chosen.captures))
    if not names:
        raise BadInput("no captures: name files, or a folder with *.json")
    worse = 0
    lines: list[str] = []
    for name in names:
        shown = _checked(name)
        worse += len(shown) > 1
        lines += shown
    head = f"drumline {__version__} decides {many(len(names), 'captured cycle')} again: "
    head += f"jobs fare otherwise in {worse}" if worse else "every job fares the same"
    return Output(text="".join(f"{line}\n" for line in (head, *lines)), exit_code=int(worse > 0))


def _checked(name: str) -> list[str]:
    """A line about the capture, and one for each job that fares otherwise."""
    was = read_capture(name)
    again = decide(snapshot=was.snapshot, pending=was.pending, policy=was.policy, now=was.now)
    broken = violations(
        snapshot=was.snapshot,
        pending=was.pending,
        decisions=again,
        policy=was.policy,
        now=was.now,
    )
    changes = changed_jobs(was.decisions, again)
    jobs = many(len(was.pending), "waiting job")
    result = f"{len(changes)} fare otherwise" if changes else "the same"
    version = was.program or "an unknown version"
    return [
        f"{display_name(name)}: {clock(was.now)} by {version}, {jobs}: {result}",
        *(f"  {each.job}: {each.before}; now {each.now}" for each in changes),
        *(f"  broken rule: {rule}" for rule in broken),
    ]


def _files(names: list[str]) -> Iterator[str]:
    for name in names:
        folder = Path(name)
        if folder.is_dir():
            yield from sorted(map(str, folder.glob("*.json")))
        else:
            yield name
