"""Read the Python stacks that `faulthandler` prints when a process is aborted; pure.

    Fatal Python error: Aborted

    Current thread 0x00007f31 (most recent call first):
      File ".../torch/distributed/distributed_c10d.py", line 3018 in all_reduce
      File ".../torch/distributed/c10d_logger.py", line 83 in wrapper
      File "/code/train.py", line 31 in train        -> all_reduce at train.py, line 31

It works for every backend, because a rank that waits in a collective has called it from Python.
Collectives that autograd starts, such as those of DDP in the backward pass, show the call of
`backward`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from drumline_agent.protocol.rank_stacks import MAX_PLACE_CHARS

_THREAD: Final = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]{1,16}\b.*most recent call first")
_FRAME: Final = re.compile(r"  File \"([^\"]{1,4096})\", line (\d{1,9}|\?\?\?) in (.{1,512})")
_PRINTED: Final = re.compile(
    r"Fatal Python error: |Extension modules: |  \.\.\.$|  <(?:no Python|tstate is freed|cannot)"
    r"|Current thread's C stack trace|  Binary file \""  # Python 3.14
)
_COLLECTIVES: Final = ("/torch/distributed/distributed_c10d.py", "_functional_collectives.py")
_LIBRARIES: Final = re.compile(r"/(?:site|dist)-packages/|/lib(?:64)?/python\d|^<")


class _Frame(NamedTuple):
    file: str
    line: str
    function: str


def is_printed_stack(line: str) -> bool:
    """Return whether a line is one of those that `faulthandler` prints."""
    return any(pattern.match(line) for pattern in (_FRAME, _THREAD, _PRINTED))


def place_of(lines: Iterable[str]) -> tuple[str, str] | None:
    """Return the collective that a process was in, and the line of its own code.

    Args:
        lines: what the process printed when it was aborted.

    Returns:
        The collective, or an empty string outside of one. None if no stack was printed.
    """
    threads: list[list[_Frame]] = []
    for line in lines:
        if _THREAD.match(line):
            threads.append([])
        elif threads and (frame := _FRAME.match(line)):
            threads[-1].append(_Frame(*frame.groups()))
    shown = [frames for frames in threads if frames]
    if not shown:
        return None
    # The main thread is printed last. It is the one that waits, unless only another one does.
    frames = next((each for each in reversed(shown) if _collective(each)), shown[-1])
    own = next((frame for frame in frames if not _LIBRARIES.search(frame.file)), frames[-1])
    name = own.file.rpartition("/")[2][-64:]
    return _collective(frames)[:MAX_PLACE_CHARS], f"{name}, line {own.line}"


def _collective(frames: Sequence[_Frame]) -> str:
    """Return the public function of torch.distributed that the program called; empty: none."""
    called = [
        frame.function
        for frame in frames
        if frame.file.endswith(_COLLECTIVES) and not frame.function.startswith(("_", "wrapper"))
    ]
    # Innermost first: `all_gather_object` calls `all_gather`.
    return called[-1] if called else ""
