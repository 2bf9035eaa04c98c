"""What a job may be given in a notebook beside its command: the options of `drumline run`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TypedDict, Unpack

from drumline_cli.errors import BadInput
from drumline_cli.run_arguments import add_run


class RunOptions(TypedDict, total=False):
    """Options by name; what each means: `drumline run --help`."""

    queue: str
    """Default: DRUMLINE_QUEUE, or the cluster's only one."""
    image: str
    """Default: DRUMLINE_IMAGE."""
    name: str
    """Default: the script's, and four random letters."""
    launch: str
    """PerGpu or PerPod; default: by the command."""
    requirements: str | os.PathLike[str]
    """A file of packages that the image lacks."""
    pool: str
    """A GpuPool."""
    priority: str
    """A PriorityClass."""
    after: Sequence[str]
    """Jobs that must have succeeded, or ended (`JOB:Finished`)."""
    env: Mapping[str, str]
    """Variables."""
    claim: Mapping[str, str]
    """Claims, and where they appear."""
    resources: Mapping[str, str]
    """Of each pod besides its GPUs: cpu, memory."""


_PAIRS: Final = frozenset({"env", "claim"})


def run_arguments(**options: Unpack[RunOptions]) -> argparse.Namespace:
    """The arguments of `drumline run`: its defaults, and what is given here.

    Raises:
        BadInput: there is no such option.
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
