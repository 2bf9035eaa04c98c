"""The simulated week: committed tokens per GPU-hour and per dollar, beside Kueue with JobSet.

`make bench WHAT=week`: seven days on 512 GPUs, then what the result depends on: Drumline with slow
recoveries and snapshots that cost their bound, large jobs kept off spot nodes, and how often things
fail times how often is saved, on 256 GPUs in a day. `ARGS=--short` leaves the first two out.
Nothing here is measured: it is computed from docs/simulated-week.md's table, on a virtual clock.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from drumline.simulator.parameters import recovery
from drumline.simulator.week import sides
from drumline.simulator.week.setting import Setting
from drumline.simulator.week.sides import Side
from drumline.simulator.week.study import WeekResult, result, run_week
from drumline.simulator.week.trace import arrivals
from tests.bench.report import Row, publish

MORE_TOKENS: Final = 20.0
CHEAPER: Final = 25.0
FAILURES: Final = (1.0, 4.0)
INTERVALS: Final = (600.0, 1800.0, 3600.0)
_SMALL: Final = Setting(nodes=32, reserved_nodes=8, seconds=86_400.0)
_SOURCE: Final = "simulated, docs/simulated-week.md"
_SLOW_SECONDS: Final = 105.0
"""What HyperPod's recoveries without a checkpoint take at thousands of accelerators (AWS blog,
December 2025): an upper end for ours, which were measured on processors."""
_SNAPSHOT_BOUND: Final = 0.03


def main() -> None:
    """Simulate and publish."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.week", description=__doc__)
    parser.add_argument("--short", action="store_true", help="only what it depends on")
    short: bool = parser.parse_args().short
    rows = list(_grid()) if short else [*_whole(), *_variants(), *_grid()]
    publish("week", rows)


def cautious() -> Side:
    """Drumline with recoveries as slow as published elsewhere and snapshots at their bound."""
    execution = replace(
        recovery.ours(),
        process_seconds=_SLOW_SECONDS,
        repair_seconds=_SLOW_SECONDS,
        snapshot_share=_SNAPSHOT_BOUND,
    )
    return sides.ours(execution, name="Drumline, cautious")


def _whole() -> Iterator[Row]:
    yield from _compared("week", Setting(), (sides.ours(), sides.peer(), sides.best_peer()))


def _variants() -> Iterator[Row]:
    reserved = replace(_SMALL, large_on_spot=False)
    calm = replace(_SMALL, reclaims=0.01)
    yield from _compared("256 GPUs, a day", _SMALL, (cautious(), sides.peer(), sides.best_peer()))
    yield from _compared("large jobs off spot", reserved, (sides.ours(), sides.peer()))
    yield from _compared("spot nodes stay", calm, (sides.ours(), sides.peer()))


def _grid() -> Iterator[Row]:
    for failures in FAILURES:
        for seconds in INTERVALS:
            setting = replace(_SMALL, failures=failures, reclaims=failures)
            name = f"failures and reclaims x {failures:g}, checkpoints every {seconds / 60:g} min"
            ours, peer = _results(
                setting,
                (
                    sides.ours(recovery.ours(checkpoint_seconds=seconds)),
                    sides.peer(recovery.peer(checkpoint_seconds=seconds)),
                ),
            )
            yield Row(
                name=f"{name}: more tokens per GPU-hour",
                value=_more(ours, peer),
                unit="%",
                source=_SOURCE,
            )


def _compared(name: str, setting: Setting, chosen: tuple[Side, ...]) -> Iterator[Row]:
    first, *rest = results = _results(setting, chosen)
    for each in results:
        account = each.account
        parts = (account.lost, account.idle, account.saving, account.restarting)
        words = ("lost", "idle", "saving", "restarting")
        said = ", ".join(
            f"{word} {100 * part / account.held:.1f} %"
            for word, part in zip(words, parts, strict=True)
        )
        yield Row(
            name=f"{name}, {each.side}: tokens per GPU-hour ({said})",
            value=each.tokens_per_gpu_hour / 1e6,
            unit="M",
            source=_SOURCE,
        )
        yield Row(
            name="  dollars for a million tokens",
            value=each.dollars_per_million,
            unit="$",
            source=_SOURCE,
        )
    for other in rest:
        more, cheaper = _more(first, other), _cheaper(first, other)
        is_goal = name == "week" and other.side == sides.PEER
        yield Row(
            name=f"{name}, {first.side} beside {other.side}: more tokens per GPU-hour",
            value=more,
            unit="%",
            goal=f">= {MORE_TOKENS:g} %" if is_goal else "",
            met=more >= MORE_TOKENS if is_goal else None,
            source=_SOURCE,
        )
        yield Row(
            name="  cheaper per token",
            value=cheaper,
            unit="%",
            goal=f">= {CHEAPER:g} %" if is_goal else "",
            met=cheaper >= CHEAPER if is_goal else None,
            source=_SOURCE,
        )


def _results(setting: Setting, chosen: tuple[Side, ...]) -> list[WeekResult]:
    jobs = arrivals(setting)
    results: list[WeekResult] = []
    for side in chosen:
        outcome = run_week(setting, side=side, jobs=jobs)
        results.append(result(outcome, setting=setting, side=side.name))
        tokens = results[-1].tokens_per_gpu_hour / 1e6
        print(f"{side.name}: {len(jobs)} jobs, {tokens:.2f} M tokens per GPU-hour", flush=True)
    return results


def _more(ours: WeekResult, other: WeekResult) -> float:
    return 100 * (ours.tokens_per_gpu_hour / other.tokens_per_gpu_hour - 1)


def _cheaper(ours: WeekResult, other: WeekResult) -> float:
    return 100 * (1 - ours.dollars_per_million / other.dollars_per_million)


if __name__ == "__main__":
    main()
