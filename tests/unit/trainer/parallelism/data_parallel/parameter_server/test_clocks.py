"""Workers never drift apart further than they may, whatever order they come in."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_trainer.parallelism.data_parallel.parameter_server.clocks import Clocks, most_missed


def test_nobody_is_ahead_with_a_bound_of_0() -> None:
    clocks = Clocks.of(workers=2, bound=0)
    assert clocks.push(0) == 0
    assert not clocks.may_pull(0)
    assert clocks.push(1) == 1
    assert clocks.may_pull(0)


def test_a_worker_ahead_waits_for_the_slowest() -> None:
    clocks = Clocks.of(workers=3, bound=2, finished=5)
    for _ in range(2):
        clocks.push(0)
        clocks.push(1)
        assert clocks.may_pull(0)
    clocks.push(0)
    assert (clocks.ahead(0), clocks.may_pull(0)) == (3, False)
    assert clocks.may_pull(1)
    clocks.push(2)
    assert clocks.may_pull(0)


@settings(deadline=None)
@given(st.integers(2, 4), st.integers(0, 3), st.data())
def test_no_gradient_lacks_more_than_the_bound(
    workers: int, bound: int, data: st.DataObject
) -> None:
    clocks = Clocks.of(workers=workers, bound=bound)
    pulled = [True] * workers
    for _ in range(40):
        able = [w for w in range(workers) if pulled[w] or clocks.may_pull(w)]
        worker = data.draw(st.sampled_from(able))
        if pulled[worker]:
            assert clocks.push(worker) <= most_missed(workers=workers, bound=bound)
        else:
            assert clocks.ahead(worker) <= bound
            clocks.pull(worker)
        pulled[worker] = not pulled[worker]
