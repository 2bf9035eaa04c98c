"""A thread prepares the data of the next step while this step runs.

Results come in the order of the keys. An error belongs to the key that caused it and is raised when
that key is due, not earlier. Leaving the `with` block waits for the preparation that is under way,
which fails early if its source is closed before: `with Prefetcher(...) as steps, closing(dataset):`
closes the dataset first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Key = TypeVar("Key")
Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class _Failed:
    error: BaseException


class _Over:
    """After the last key."""


class Prefetcher(Generic[Key, Prepared]):
    """`prepare(key)` for each key in order, `depth` of them ahead of the one in use.

    Args:
        prepare: loads one item, in a thread.
        keys: items in the order of use.
        depth: number of items prepared ahead.
    """

    def __init__(
        self, prepare: Callable[[Key], Prepared], keys: Iterable[Key], *, depth: int = 1
    ) -> None:
        self._prepare = prepare
        self._keys = iter(keys)
        # The semaphore bounds memory: a batch is prepared only once a place is free.
        self._free = threading.Semaphore(depth)
        self._ready: queue.SimpleQueue[Prepared | _Failed | _Over] = queue.SimpleQueue()
        self._left = False
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def __enter__(self) -> Iterator[Prepared]:
        """Begin."""
        self._thread.start()
        return self._taken()

    def __exit__(self, *_: object) -> None:
        """End the thread; what was prepared and not taken is dropped."""
        # `_left` is set before the release, so the thread sees it when it wakes and prepares
        # nothing more.
        self._left = True
        self._free.release()
        self._thread.join()

    def _taken(self) -> Iterator[Prepared]:
        while True:
            match self._ready.get():
                case _Failed(error):
                    raise error
                case _Over():
                    return
                case prepared:
                    self._free.release()  # the place it took: from here on the next is prepared
                    yield prepared

    def _work(self) -> None:
        try:
            # The iterator runs in this thread too. Its errors arrive in order like those of
            # `prepare`.
            for key in self._keys:
                self._free.acquire()
                if self._left:
                    return
                self._ready.put(self._prepare(key))
        except BaseException as error:  # noqa: BLE001 - raised where the key's turn comes
            self._ready.put(_Failed(error))
        else:
            self._ready.put(_Over())
