"""Pauses grow, stay bounded, and listen to the server."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from drumline.kube.errors import (
    Forbidden,
    KubeError,
    TooManyRequests,
    Unreachable,
    from_stream,
)
from drumline.kube.retry import ONCE, RetryPolicy

_POLICY = RetryPolicy(attempts=5, base_seconds=0.1, cap_seconds=5.0, patience_seconds=30.0)


def _overload(retry_after_seconds: float | None) -> TooManyRequests:
    return TooManyRequests(code=429, reason="", message="", retry_after_seconds=retry_after_seconds)


def _pause(error: KubeError, *, attempt: int, policy: RetryPolicy = _POLICY) -> float | None:
    return policy.pause_seconds(error, attempt=attempt, jitter=random.Random(1))


@given(attempt=st.integers(1, 10_000), seed=st.integers())
def test_a_pause_lies_in_the_upper_half_of_its_bound(attempt: int, seed: int) -> None:
    bound = min(5.0, 0.1 * 2 ** min(attempt - 1, 10))
    pause = _POLICY.backoff_seconds(attempt=attempt, jitter=random.Random(seed))
    assert bound / 2 <= pause <= bound


def test_the_server_may_stretch_a_pause_within_our_patience() -> None:
    assert _pause(_overload(7), attempt=1) == 7
    assert _pause(_overload(31), attempt=1) is None


def test_where_giving_up_is_no_choice_a_long_retry_after_is_cut_to_our_patience() -> None:
    def pause(error: KubeError | None) -> float:
        return _POLICY.endless_pause_seconds(error, attempt=1, jitter=random.Random(1))

    assert pause(_overload(7)) == 7
    assert pause(_overload(86_400)) == 30
    assert pause(_overload(None)) <= 0.1
    assert 0 < pause(None) <= 0.1


def test_a_watch_says_in_its_stream_how_long_to_wait() -> None:
    error = from_stream(
        b'{"code":429,"reason":"TooManyRequests","details":{"retryAfterSeconds":3}}'
    )
    assert isinstance(error, TooManyRequests)
    assert error.retry_after_seconds == 3


def test_attempts_that_took_long_are_not_repeated() -> None:
    """A webhook that does not answer takes the whole deadline of each attempt."""
    slow = _POLICY.pause_seconds(
        Unreachable("deadline"), attempt=1, jitter=random.Random(1), spent_seconds=5.0
    )
    assert slow is None
    assert _pause(Unreachable("reset"), attempt=1) is not None


def test_only_retryable_failures_are_tried_again_and_not_for_ever() -> None:
    refused = Forbidden(code=403, reason="", message="")
    assert _pause(refused, attempt=1) is None
    assert _pause(Unreachable("reset"), attempt=4) is not None
    assert _pause(Unreachable("reset"), attempt=5) is None
    assert _pause(Unreachable("reset"), attempt=1, policy=ONCE) is None
