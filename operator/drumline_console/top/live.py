"""Draw screens in a terminal until the user quits.

A thread reads the cluster, so that keys work while an API server is slow, and quitting does not
wait for it. If the server does not answer, the last state stays on the screen with its age.
"""

from __future__ import annotations

import curses
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import Final

from drumline_cli.errors import CommandError
from drumline_cli.formatting import duration
from drumline_console.top.screen import TopRows, lines_of, render

_KEY_MILLISECONDS: Final = 100
"""Time to wait for a key before checking whether the cluster has answered."""


@dataclass(slots=True, kw_only=True)
class TopView:
    """The drawn rows, and the user's choices."""

    rows: TopRows
    read_at: float
    first: int = 0
    paused: bool = False
    error: str = ""

    def note(self, now: float) -> str:
        """Return the text beside the keys in the last line, or empty text."""
        age = duration(now - self.read_at)
        if self.error:
            return f"{self.error}; showing the state of {age} ago (q quits)"
        return f"paused {age} ago: p continues, q quits" if self.paused else ""


def draw(rows: TopRows, read: Callable[[], TopRows], *, every_seconds: float) -> None:
    """Draw `rows`, and then each result of `read`, until the user quits.

    Args:
        rows: first content.
        read: reads new content.
        every_seconds: time between two reads.
    """
    view = TopView(rows=rows, read_at=monotonic())
    with suppress(KeyboardInterrupt):
        curses.wrapper(_loop, view, lambda: ask(read), every_seconds)


def ask(read: Callable[[], TopRows]) -> Future[TopRows]:
    """Run `read` in a daemon thread, so that the end of the process does not wait for it.

    The interpreter joins the threads of a `ThreadPoolExecutor` at exit.
    """
    asked: Future[TopRows] = Future()

    def answer() -> None:
        try:
            asked.set_result(read())
        except Exception as error:  # noqa: BLE001 - raised where the result is taken
            asked.set_exception(error)

    # A daemon thread, because a slow read must not delay quitting.
    Thread(target=answer, daemon=True).start()
    return asked


def _loop(
    window: curses.window, view: TopView, ask: Callable[[], Future[TopRows]], every_seconds: float
) -> None:
    with suppress(curses.error):  # a terminal that cannot hide its cursor
        curses.curs_set(0)
    # The key wait also paces the loop, so the processor stays idle.
    window.timeout(_KEY_MILLISECONDS)
    asked: Future[TopRows] | None = None
    next_at = monotonic() + every_seconds
    while True:
        _paint(window, view)
        if not obey(window.getch(), view):
            return
        # One read at a time: a slow server must not collect requests.
        if asked is None and not view.paused and monotonic() >= next_at:
            asked = ask()
        if asked is not None and asked.done():
            # The next read starts after this one ended, not at a fixed rate.
            take(asked, view)
            asked, next_at = None, monotonic() + every_seconds


def _paint(window: curses.window, view: TopView) -> None:
    height, width = window.getmaxyx()
    window.erase()
    # The last column stays empty. Some terminals wrap a full line.
    lines = render(
        view.rows, width=width - 1, height=height, first=view.first, note=view.note(monotonic())
    )
    for row, line in enumerate(lines):
        with suppress(curses.error):  # the window became smaller meanwhile
            window.addstr(row, 0, line, curses.A_BOLD if row == 0 else curses.A_NORMAL)
    window.refresh()


def obey(key: int, view: TopView) -> bool:
    """Return whether to continue after this key."""
    match key:
        case 113 | 81 | 27:  # q, Q, Escape
            # Escape arrives as a single key, because keypad mode decodes sequences.
            return False
        case 112:  # p
            view.paused = not view.paused
        case curses.KEY_DOWN | curses.KEY_NPAGE:
            down = 1 if key == curses.KEY_DOWN else 10
            # The renderer limits the position further, by the height of the screen.
            view.first = min(view.first + down, lines_of(view.rows))
        case curses.KEY_UP | curses.KEY_PPAGE:
            view.first = max(0, view.first - (1 if key == curses.KEY_UP else 10))
        case _:
            pass
    return True


def take(asked: Future[TopRows], view: TopView) -> None:
    """Show the new rows, or the error of the read."""
    try:
        # The old rows stay. The note shows their age and the error.
        view.rows = asked.result()
    except CommandError as error:
        view.error = str(error)
    else:
        view.error, view.read_at = "", monotonic()
