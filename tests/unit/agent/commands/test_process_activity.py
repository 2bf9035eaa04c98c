from __future__ import annotations

import os

from drumline_agent.commands.process_activity import (
    ActivityWatch,
    process_tree,
    running_processes,
)


def test_a_silence_begins_with_the_last_line_or_the_last_use_of_a_processor() -> None:
    watch = ActivityWatch(begun_at=100.0)
    assert watch.silent_seconds(now=103.0) == 3.0
    watch.printed(at=104.0)
    watch.used(1.0, at=105.0)
    watch.used(1.05, at=110.0)  # 1 % of a processor: threads that wait
    assert watch.silent_seconds(now=112.0) == 7.0
    watch.used(1.35, at=113.0)  # 10 %
    assert watch.silent_seconds(now=114.0) == 1.0
    watch.used(0.5, at=118.0)  # a child has ended, and another may have begun
    assert watch.silent_seconds(now=118.0) == 0.0


def test_patience_grows_with_the_longest_pause_that_ended() -> None:
    watch = ActivityWatch(begun_at=0.0)
    watch.printed(at=30.0)
    assert watch.patience_seconds(least=600.0) == 600.0
    watch.printed(at=120.0)
    assert watch.patience_seconds(least=600.0) == 900.0
    assert watch.silent_seconds(now=5000.0) == 4880.0
    assert watch.patience_seconds(least=600.0) == 900.0


def test_processors_are_read_every_few_seconds() -> None:
    watch = ActivityWatch(begun_at=0.0)
    assert watch.due(now=0.0)
    watch.used(0.0, at=0.0)
    assert not watch.due(now=4.9)
    assert watch.due(now=5.0)


def test_a_tree_has_children_of_children() -> None:
    processes = {1: (0, 9.0), 5: (1, 1.0), 6: (5, 2.0), 7: (6, 4.0), 8: (1, 100.0)}
    assert process_tree(5, processes) == [5, 6, 7]
    assert process_tree(99, processes) == []
    assert process_tree(2, {2: (3, 1.0), 3: (2, 1.0)}) == [2, 3]  # read while ids were reused


def test_this_process_runs() -> None:
    parent, seconds = running_processes()[os.getpid()]
    assert parent == os.getppid()
    assert seconds > 0
