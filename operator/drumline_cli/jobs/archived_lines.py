"""Lines of pods as the archive keeps them: those of each pod below a heading. Pure.

The same pod may be in several texts, one for each incident: a line counts once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from drumline_addons.archive.layout import NOT_READ
from drumline_cli.jobs.follow import LogLine, log_line

_HEADING: Final = re.compile(rb"==> [a-z0-9.-]+-(\d+)-g\d+ on .* <==")


def archived_lines(texts: Iterable[bytes]) -> list[LogLine]:
    """Return the lines by time. What stands below no heading is left out."""
    lines: dict[LogLine, None] = {}
    for text in texts:
        index = ""
        for line in text.split(b"\n"):
            heading = _HEADING.fullmatch(line)
            if heading:
                index = heading[1].decode()
            elif index and line.startswith(NOT_READ):
                lines[LogLine(at="", index=index, text=line.decode(errors="replace"))] = None
            elif index and line:
                lines[log_line(line, index=index)] = None
    return sorted(lines, key=lambda line: line.at)
