"""Keep a value for seconds. A timer then drops it without a further request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


class Cancellable(Protocol):
    """A running timer."""

    def cancel(self) -> None:
        """Stop the timer."""
        ...


Later = Callable[[float, Callable[[], None]], Cancellable]
"""Function that calls back after a number of seconds."""


def later(seconds: float, call: Callable[[], None]) -> Cancellable:
    """Set a timer of the event loop."""
    return asyncio.get_running_loop().call_later(seconds, call)


class KeptValue(Generic[T]):
    """A value that is read on demand and kept for some seconds. One value for all callers.

    Args:
        seconds: time to keep the value.
        after: function that sets the timer.
    """

    def __init__(self, *, seconds: float, after: Later = later) -> None:
        self._seconds = seconds
        self._after = after
        self._reading = asyncio.Lock()
        self._value: T | None = None
        self._of = b""
        self._timer: Cancellable | None = None

    async def value(self, read: Callable[[], Awaitable[T]], *, of: bytes = b"") -> T:
        """Return the value that is kept for `of`, or read it and replace the kept one.

        Args:
            read: reads the value. Concurrent callers with an equal `of` get the same value.
            of: digest of the credentials that the value was read with.
        """
        async with self._reading:
            if self._value is not None and self._of == of:
                return self._value
            self.drop()
            value = await read()
            self._value, self._of = value, of
            self._timer = self._after(self._seconds, self.drop)
            return value

    def drop(self) -> None:
        """Drop the value."""
        self._value = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
