"""Define the options for a job in a notebook: those of `drumline run`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict, Unpack

from drumline_cli.errors import BadInput
from drumline_cli.run_arguments import add_run


class RunOptions(TypedDict, total=False):
    """Options by name. `drumline run --help` describes them."""

    queue: str
    """Default: DRUMLINE_QUEUE, or the cluster's only queue."""
    image: str
    """Default: DRUMLINE_IMAGE."""
    name: str
    """Default: the script's name and four random letters."""
    launch: str
    """PerGpu or PerPod. Default: depends on the command."""
    requirements: str | os.PathLike[str]
    """File of packages that the image lacks."""
    pool: str
    """A GpuPool."""
    priority: str
    """A PriorityClass."""
    after: Sequence[str]
    """Jobs that must have succeeded, or ended (`JOB:Finished`), before this job starts."""
    env: Mapping[str, str]
    """Environment variables."""
    claim: Mapping[str, str]
    """Claims and their mount paths."""
    resources: Mapping[str, str]
    """Resources of each pod besides its GPUs: cpu, memory."""


_PAIRS: Final = frozenset({"env", "claim"})


def run_arguments(**options: Unpack[RunOptions]) -> argparse.Namespace:
    """Return the arguments of `drumline run` with its defaults and the given options.

    Raises:
        BadInput: an option is unknown.
    """
    grammar = argparse.ArgumentParser()
    add_run(grammar)
    chosen = grammar.parse_args([])
    known = RunOptions.__annotations__
    for name, value in options.items():
        if name not in known:
            raise BadInput(f"run has no option {name!r}; its options are {', '.join(known)}")
        setattr(chosen, name, value)
    chosen.after = list(chosen.after)
    for name in _PAIRS & options.keys():
        setattr(chosen, name, _pairs(getattr(chosen, name), option=name))
    if "resources" in options:
        chosen.resources = ",".join(_pairs(options["resources"], option="resources"))
    if "requirements" in options:
        chosen.requirements = Path(options["requirements"])
    return chosen


def _pairs(given: Mapping[str, str], *, option: str) -> list[str]:
    if not isinstance(given, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - a notebook
        raise BadInput(f"{option} is a dict: {option}={{'NAME': 'VALUE'}}")
    return [f"{name}={value}" for name, value in given.items()]
