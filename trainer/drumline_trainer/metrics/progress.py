"""The progress line: `step 40/200  loss 2.613  grad 0.810  18.2k tok/s  eta 0:42`."""

from __future__ import annotations

from drumline_trainer.metrics.rewards import Rewards
from drumline_trainer.metrics.staleness import Staleness


def progress_line(
    *,
    step: int,
    total_steps: int,
    loss: float,
    gradient_norm: float,
    tokens_per_second: float,
    eta_seconds: float,
    mfu: float | None = None,
    staleness: Staleness | None = None,
    rewards: Rewards | None = None,
) -> str:
    """A line for standard output; without MFU where it is not known."""
    efficiency = "" if mfu is None else f"  mfu {mfu:.1%}"
    eta = format_duration(eta_seconds)
    stale = f"  stale {staleness.mean:.1f}" if staleness and staleness.most else ""
    ahead = f"  margin {rewards.margin:+.3f} ({rewards.accuracy:.0%} ahead)" if rewards else ""
    return (
        f"step {step}/{total_steps}  loss {loss:.3f}{ahead}  grad {gradient_norm:#.3g}"
        f"  {short_count(tokens_per_second)} tok/s{efficiency}{stale}  eta {eta}"
    )


def smoothed(before: float | None, newest: float) -> float:
    """An exponential moving average, so that one slow window changes the ETA little."""
    return newest if before is None else 0.7 * before + 0.3 * newest


def short_count(value: float) -> str:
    """Three significant digits: 950, 18.2k, 1.25M."""
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if value >= size:
            return f"{value / size:#.3g}{unit}"
    return f"{value:.0f}"


def format_duration(seconds: float) -> str:
    """0:42, 12:05, 3:00:00."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"
