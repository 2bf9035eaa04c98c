from __future__ import annotations

import os
from pathlib import Path

from drumline_contract.config import ProfileConfig
from drumline_trainer.profiling.profiler import REQUEST_FILE, Window, WindowEvent


def turns(window: Window, *, first: int = 0, last: int = 12) -> dict[int, WindowEvent]:
    events = {step: window.at(step) for step in range(first, last + 1)}
    return {step: turn for step, turn in events.items() if turn is not WindowEvent.NONE}


def touch(folder: Path, *, at: int) -> None:
    file = folder / REQUEST_FILE
    file.touch()
    os.utime(file, ns=(at, at))


def test_the_window_that_is_configured_opens_once() -> None:
    window = Window(ProfileConfig(start_step=4, steps=3), folder=None, look_every=2)
    assert turns(window) == {4: WindowEvent.BEGIN, 7: WindowEvent.END}
    assert turns(window) == {}


def test_a_run_that_goes_on_within_the_window_profiles_as_many_steps() -> None:
    config = ProfileConfig(start_step=4, steps=3)
    window = Window(config, folder=None, look_every=2)
    assert turns(window, first=6) == {6: WindowEvent.BEGIN, 9: WindowEvent.END}
    assert turns(Window(config, folder=None, look_every=2), first=7) == {}


def test_a_touch_is_seen_at_the_next_logged_step_and_only_once(tmp_path: Path) -> None:
    touch(tmp_path, at=1000)
    window = Window(ProfileConfig(steps=2), folder=tmp_path, look_every=5)
    assert turns(window) == {}, "it was touched before the run began"
    touch(tmp_path, at=2000)
    assert turns(window) == {0: WindowEvent.BEGIN, 2: WindowEvent.END}
    assert turns(window, first=1) == {}
    touch(tmp_path, at=3000)
    assert turns(window, first=1) == {5: WindowEvent.BEGIN, 7: WindowEvent.END}


def test_a_touch_in_an_open_window_asks_for_no_other(tmp_path: Path) -> None:
    window = Window(ProfileConfig(start_step=4, steps=3), folder=tmp_path, look_every=5)
    assert turns(window, last=4) == {4: WindowEvent.BEGIN}
    touch(tmp_path, at=2000)
    assert turns(window, first=5) == {7: WindowEvent.END}
