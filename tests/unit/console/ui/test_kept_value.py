"""What is kept for seconds: read once for all who ask, and gone by itself."""

from __future__ import annotations

import asyncio
import gc
import weakref

from drumline_console.ui.kept_value import KeptValue
from tests.unit.console.ui.timers import Timers


class Reads:
    def __init__(self) -> None:
        self.count = 0

    async def __call__(self) -> int:
        self.count += 1
        await asyncio.sleep(0)
        return self.count


async def test_who_ask_together_get_what_was_read_once_until_the_timer_drops_it() -> None:
    timers, read = Timers(), Reads()
    kept: KeptValue[int] = KeptValue(seconds=3.0, after=timers)
    assert await asyncio.gather(*(kept.value(read) for _ in range(5))) == [1] * 5
    assert [timer.seconds for timer in timers.running] == [3.0]
    assert await kept.value(read) == 1
    timers.go_off()
    assert kept._value is None
    assert await kept.value(read) == 2


async def test_a_value_of_other_credentials_takes_the_place_of_the_one_before() -> None:
    timers, read = Timers(), Reads()
    kept: KeptValue[int] = KeptValue(seconds=3.0, after=timers)
    asked = (kept.value(read, of=of) for of in (b"a", b"b", b"b", b"a"))
    assert await asyncio.gather(*asked) == [1, 2, 2, 3]
    assert [timer.cancelled for timer in timers.running] == [True, True, False]


async def test_the_timer_of_what_was_dropped_does_not_drop_what_came_after_it() -> None:
    timers, read = Timers(), Reads()
    kept: KeptValue[int] = KeptValue(seconds=3.0, after=timers)
    await kept.value(read)
    kept.drop()
    assert await kept.value(read) == 2
    first, second = timers.running
    assert (first.cancelled, second.cancelled) == (True, False)


async def test_it_lives_as_long_as_its_timer_when_nobody_else_holds_it() -> None:
    timers = Timers()
    kept: KeptValue[int] = KeptValue(seconds=3.0, after=timers)
    await kept.value(Reads())
    seen = weakref.ref(kept)
    del kept
    gc.collect()
    assert seen() is not None
    timers.go_off()
    gc.collect()
    assert seen() is None
