"""What a long start says: each step with the seconds it took and the seconds since the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Prefixes every line with the seconds since the start."""

    out: Say
    started: float = field(default_factory=time.monotonic)

    def say(self, line: str) -> None:
        self.out(f"[{time.monotonic() - self.started:5.1f} s] {line}")

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Say that a step begins, and how long it took."""
        began = time.monotonic()
        self.say(f"{what} ...")
        yield
        self.say(f"{what}: {time.monotonic() - began:.1f} s")
