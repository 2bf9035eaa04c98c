from __future__ import annotations

import threading

import pytest

from drumline_trainer.data.prefetch import Prefetcher


def prefetching() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [1, 3])
def test_the_order_is_that_of_the_keys(depth: int) -> None:
    with Prefetcher(lambda key: key * key, range(50), depth=depth) as squares:
        assert list(squares) == [key * key for key in range(50)]
    assert not prefetching()


def test_the_next_is_prepared_while_one_is_in_use_and_no_more() -> None:
    begun: list[int] = []
    second, third = threading.Event(), threading.Event()

    def prepare(key: int) -> int:
        begun.append(key)
        {1: second, 2: third}.get(key, threading.Event()).set()
        return key

    with Prefetcher(prepare, range(9)) as keys:
        assert next(keys) == 0
        assert second.wait(60)  # nobody has asked for it yet
        assert begun == [0, 1]
        assert next(keys) == 1
        assert third.wait(60)
        assert begun == [0, 1, 2]


def test_an_error_is_raised_where_its_turn_comes() -> None:
    def prepare(key: int) -> int:
        if key == 2:
            raise ValueError("damaged")
        return key

    with Prefetcher(prepare, range(9), depth=5) as keys:
        assert [next(keys), next(keys)] == [0, 1]
        with pytest.raises(ValueError, match="damaged"):
            next(keys)
    assert not prefetching()


def test_an_interrupt_leaves_no_thread() -> None:
    def interrupted() -> None:
        with Prefetcher(lambda key: key, range(1000)) as keys:
            next(keys)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not prefetching()


def test_what_is_closed_first_lets_a_waiting_thread_go() -> None:
    closed, waiting = threading.Event(), threading.Event()

    def prepare(key: int) -> int:
        if key:
            waiting.set()
            assert closed.wait(60)
            raise ConnectionError("closed")
        return key

    class Source:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            closed.set()

    with Prefetcher(prepare, range(9)) as keys, Source():
        assert next(keys) == 0
        assert waiting.wait(60)
    assert not prefetching()
