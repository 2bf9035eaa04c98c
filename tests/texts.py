"""Compare texts so that their wording can change.

A message is compared by the figures and names that it must contain:

    assert not missing(blocked.message, "5 GPUs", "research", "h100")

A table or a page is compared with a golden file: the fixture `golden` reads it in the folder
`golden` beside the test. After a change of the output, `DRUMLINE_UPDATE_GOLDEN=1 pytest TEST`
writes these files again. Review them with `git diff`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

UPDATE = "DRUMLINE_UPDATE_GOLDEN"


def missing(text: str, *parts: str) -> list[str]:
    """Return the parts that a text does not contain as whole words, after the text itself."""
    absent = [part for part in parts if not re.search(rf"(?<!\w){re.escape(part)}(?!\w)", text)]
    return [f"in {text!r}", *absent] if absent else []


@dataclass(frozen=True)
class Golden:
    """The golden files of a test module."""

    folder: Path

    def __call__(self, name: str, text: str) -> None:
        """Compare a text with the file of this name, or write the file."""
        file = self.folder / name
        lines = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
        if os.environ.get(UPDATE):
            file.parent.mkdir(exist_ok=True)
            file.write_text(lines)
        assert lines == file.read_text(), f"{UPDATE}=1 writes {file}"
