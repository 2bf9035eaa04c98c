from __future__ import annotations

from drumline_agent.commands.token_bucket import TokenBucket


def taken(bucket: TokenBucket, *, now: float) -> int:
    return sum(bucket.take(now=now) for _ in range(1000))


def test_a_burst_passes_and_then_so_many_a_second() -> None:
    bucket = TokenBucket(per_second=50, burst=200)
    assert taken(bucket, now=5.0) == 200
    assert taken(bucket, now=6.0) == 50
    assert taken(bucket, now=6.01) == 0
    assert taken(bucket, now=6.03) == 1
    assert taken(bucket, now=1e6) == 200


def test_a_clock_that_goes_back_gives_nothing() -> None:
    bucket = TokenBucket(per_second=50, burst=200)
    taken(bucket, now=5.0)
    assert taken(bucket, now=4.0) == 0


def test_what_was_used_beforehand_is_missing_later() -> None:
    bucket = TokenBucket(per_second=50, burst=200)
    bucket.charge(300, now=0.0)
    assert taken(bucket, now=1.9) == 0
    assert taken(bucket, now=3.0) == 50
