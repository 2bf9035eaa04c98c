"""Arrow files that the library `datasets` leaves beside a data set and does not read as one.

data-00000-of-00001.arrow        the rows
cache-1f2e3d4c5b6a7980.arrow     rows that `map` or `filter` made of them once
data-00001-of-00002.arrow        of an earlier `save_to_disk`, which state.json does not list
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from drumline_contract.regular_files import read_regular

_SUFFIX: Final = ".arrow"
_STATE_FILE: Final = "state.json"
_MAX_STATE_BYTES: Final = 16 << 20
_CACHE: Final = re.compile(r"cache-[0-9a-f]{16}(_[0-9]{5}_of_[0-9]{5})?\.arrow")


def leftovers(folder: Path, names: Iterable[str]) -> frozenset[str]:
    """Return the files that hold no rows of the data set in their folder.

    A file that is alone in its folder is never one: somebody asks for it by its name.

    Args:
        folder: where the files lie.
        names: their paths, relative to it.
    """
    files_of = defaultdict[PurePosixPath, set[str]](set)
    for path in (PurePosixPath(name) for name in names if name.endswith(_SUFFIX)):
        files_of[path.parent].add(path.name)
    return frozenset(
        (parent / name).as_posix()
        for parent, there in files_of.items()
        for name in there - _rows_of(folder / parent, there)
    )


def _rows_of(folder: Path, there: set[str]) -> set[str]:
    """Return those of the Arrow files in a folder that have the rows of its data set."""
    listed = there & _listed(folder / _STATE_FILE)
    return listed or {name for name in there if not _CACHE.fullmatch(name)} or there


def _listed(state: Path) -> set[str]:
    """Return the files that a state.json lists. Empty: it lists none, or cannot be read."""
    try:
        known: Any = json.loads(read_regular(state, limit=_MAX_STATE_BYTES))
        files = cast("list[Any]", known["_data_files"])
        return {str(each["filename"]) for each in files}
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return set()
