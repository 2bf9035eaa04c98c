"""What the operators of each corner logged in its present life, for lives that end wrongly."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Never

import structlog

Event = MutableMapping[str, Any]


@dataclass
class Journal:
    """Lines by corner."""

    lines: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, _logger: Any, level: str, event: Event) -> Never:
        """Take a log event in, as structlog's last processor."""
        corner = str(event.get("job") or event.get("pool") or "").partition("/")[0]
        at = f"{time.monotonic():.2f}"
        words = " ".join(f"{key}={value}" for key, value in event.items() if key != "event")
        self.lines[corner].append(f"{at} {level} {event.get('event')} {words}")
        raise structlog.DropEvent

    def note(self, corner: str, text: str) -> None:
        """Something that the tests did there."""
        self.lines[corner].append(f"{time.monotonic():.2f} {text}")

    def begin(self, corner: str) -> None:
        """A new life."""
        self.lines.pop(corner, None)

    def of(self, corner: str) -> tuple[str, ...]:
        return tuple(self.lines[corner])


@contextmanager
def journal() -> Iterator[Journal]:
    """All logs go into a journal."""
    kept = Journal()
    before = structlog.get_config()
    structlog.configure(processors=[structlog.processors.format_exc_info, kept])
    try:
        yield kept
    finally:
        structlog.configure(**before)
