"""Number of attempts and pauses for a failed request."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from drumline.kube.errors import KubeError, StatusError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Capped exponential backoff with full jitter, stretched by the server's Retry-After.

    Attributes:
        attempts: How many times a request is sent at most.
        base_seconds: The upper bound of the first pause; it doubles with each attempt.
        cap_seconds: The upper bound of every pause we choose ourselves.
        patience_seconds: A longer Retry-After than this is not waited for: the error is raised.
        spent_seconds: Once attempts and pauses took this long together, no other attempt follows.
            The next one would take as long: a webhook does not answer, or asks for pauses.
    """

    attempts: int = 5
    base_seconds: float = 0.1
    cap_seconds: float = 5.0
    patience_seconds: float = 30.0
    spent_seconds: float = 4.0

    def pause_seconds(
        self,
        error: KubeError,
        *,
        attempt: int,
        jitter: random.Random,
        spent_seconds: float = 0.0,
    ) -> float | None:
        """Return the pause after the failed attempt in seconds, or None to give up.

        Args:
            error: failure of the attempt.
            attempt: number of the attempt, from 1.
            jitter: random source.
            spent_seconds: duration of all attempts and pauses.
        """
        # A conflict or a rejection repeats itself, so only transient errors are worth another
        # attempt.
        if not error.retryable or attempt >= self.attempts or spent_seconds >= self.spent_seconds:
            return None
        asked = error.retry_after_seconds if isinstance(error, StatusError) else None
        # A server that asks for minutes gets the error to the caller, which has its own schedule.
        if asked is not None and asked > self.patience_seconds:
            return None
        return max(asked or 0.0, self.backoff_seconds(attempt=attempt, jitter=jitter))

    def endless_pause_seconds(
        self, error: KubeError | None, *, attempt: int, jitter: random.Random
    ) -> float:
        """Return the pause if giving up is not possible. Retry-After counts within our patience.

        Args:
            error: the last error. None: no answer.
            attempt: number of failures in a row.
            jitter: random source of the pause.
        """
        asked = error.retry_after_seconds if isinstance(error, StatusError) else None
        backoff = self.backoff_seconds(attempt=attempt, jitter=jitter)
        return max(min(asked or 0.0, self.patience_seconds), backoff)

    def backoff_seconds(self, *, attempt: int, jitter: random.Random) -> float:
        """Return a pause from [half, whole] of the attempt's bound, so that it is never zero."""
        # The exponent is bounded, because a float cannot hold 2 ** 1024.
        bound = min(self.cap_seconds, self.base_seconds * 2 ** min(attempt - 1, 16))
        return bound * jitter.uniform(0.5, 1.0)


ONCE: Final = RetryPolicy(attempts=1)
"""For requests whose caller has a schedule of its own, such as the renewal of a lease."""
