"""Tokens per second out of the counters of ranks; pure."""

from __future__ import annotations

from drumline_client.wire import StepReport

SPAN_SECONDS = 5.0
"""A rate is over at least this long."""


class TokenRate:
    """Of the ranks of a pod."""

    def __init__(self) -> None:
        self._begin: dict[int, StepReport] = {}
        self._rates: dict[int, float] = {}

    def hear(self, rank: int, report: StepReport) -> None:
        """A rank has reported its counter."""
        begin = self._begin.setdefault(rank, report)
        if report.tokens < begin.tokens:  # it has started again
            self._begin[rank] = report
        elif report.at - begin.at >= SPAN_SECONDS and report.tokens > 0:
            self._rates[rank] = (report.tokens - begin.tokens) / (report.at - begin.at)
            self._begin[rank] = report

    @property
    def tokens_per_second(self) -> float | None:
        """Of all ranks here; None until one has counted for SPAN_SECONDS."""
        return sum(self._rates.values()) if self._rates else None
