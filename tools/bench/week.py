"""The simulated week: committed tokens per GPU-hour and per dollar, beside Kueue with JobSet.

`make bench WHAT=week`: seven days on 512 GPUs under `--seeds` (3) seeds: the mean and the range of
what Drumline makes more. Then what the result depends on: the peer with restarts as long as a cloud
publishes them, Drumline with slow recoveries and snapshots that cost their bound, large jobs kept
off spot nodes, and how often things fail times how often is saved, on 256 GPUs in a day.
`ARGS=--short` leaves all but the last out.
Nothing here is measured: it is computed from docs/simulated-week.md's table, on a virtual clock.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import mean
from typing import Final

from drumline_simulator.parameters import recovery
from drumline_simulator.week import sides
from drumline_simulator.week.setting import Setting
from drumline_simulator.week.sides import Side
from drumline_simulator.week.study import WeekResult, gain, largest_gain, result, run_week
from drumline_simulator.week.trace import arrivals
from drumline_simulator.week.vacancy import VacancyWatch
from tools.bench.report import Row, publish

MORE_TOKENS: Final = 20.0
CHEAPER: Final = 25.0
OF_THE_LARGEST_GAIN: Final = 90.0
"""Percent of what could be gained from the peer's jobs if they wasted nothing."""
OCCUPANCY: Final = 97.0
"""Percent of the bound of a work-conserving scheduler."""
FAILURES: Final = (1.0, 4.0)
INTERVALS: Final = (600.0, 1800.0, 3600.0)
_SMALL: Final = Setting(nodes=32, reserved_nodes=8, seconds=86_400.0)
_SOURCE: Final = "simulated, docs/simulated-week.md"
_SLOW_SECONDS: Final = 105.0
"""What HyperPod's recoveries without a checkpoint take at thousands of accelerators (AWS blog,
December 2025): an upper end for ours, which were measured on processors."""
_SNAPSHOT_BOUND: Final = 0.03
_PUBLISHED_RESTART_SECONDS: Final = 900.0
"""What the same source says that recoveries from a checkpoint take: 15 to 30 minutes; the lower
end."""


def main() -> None:
    """Simulate and publish."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.week", description=__doc__)
    parser.add_argument("--short", action="store_true", help="only what it depends on")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="of the week; default: 3")
    chosen = parser.parse_args()
    rows = list(_grid())
    if not chosen.short:
        rows = [*_weeks(range(1, chosen.seeds + 1)), *_variants(), *rows]
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


def slow_peer() -> Side:
    """The peer with restarts as long as published, at their shortest."""
    execution = replace(
        recovery.peer(),
        process_seconds=_PUBLISHED_RESTART_SECONDS,
        repair_seconds=_PUBLISHED_RESTART_SECONDS,
    )
    return sides.peer(execution, name=f"{sides.PEER}, restarts of 15 min")


def _weeks(seeds: Sequence[int]) -> Iterator[Row]:
    """The first seed's figures, then what all of them say: trace, faults, boots and prices."""
    chosen = (sides.ours(), sides.peer(), sides.best_peer(), slow_peer())
    occupancies: dict[str, list[float]] = defaultdict(list)
    shares: list[float] = []
    more: dict[str, list[float]] = defaultdict(list)
    cheaper: dict[str, list[float]] = defaultdict(list)
    for seed in seeds:
        watched = chosen
        if seed == seeds[0]:
            watched = tuple(replace(side, decider=VacancyWatch(side.decider)) for side in chosen)
        results = _results(Setting(seed=seed), watched)
        if seed == seeds[0]:
            yield from _figures("week", results)
            yield from _vacancies(results, watched)
        ours, *peers = results
        shares.append(100 * gain(ours, peers[0]) / largest_gain(peers[0]))
        for each in results:
            occupancies[each.side].append(100 * each.occupancy)
        for other in peers:
            more[other.side].append(_more(ours, other))
            cheaper[other.side].append(_cheaper(ours, other))
    yield Row(
        name=f"week, {len(seeds)} seeds: gain as a share of the largest one"
        f" ({min(shares):.0f} to {max(shares):.0f} %)",
        value=mean(shares),
        unit="%",
        goal=f">= {OF_THE_LARGEST_GAIN:g} %",
        met=mean(shares) >= OF_THE_LARGEST_GAIN,
        source=_SOURCE,
    )
    for side, percents in occupancies.items():
        is_ours = side == sides.OURS
        yield Row(
            name=f"week, {len(seeds)} seeds, {side}: GPU-time held of the work-conserving bound"
            f" ({min(percents):.1f} to {max(percents):.1f} %)",
            value=mean(percents),
            unit="%",
            goal=f">= {OCCUPANCY:g} %" if is_ours else "",
            met=mean(percents) >= OCCUPANCY if is_ours else None,
            source=_SOURCE,
        )
    for side, percents_more in more.items():
        words = f"week, {len(seeds)} seeds, {sides.OURS} beside {side}"
        for what, percents, goal in (
            ("more tokens per GPU-hour", percents_more, MORE_TOKENS),
            ("cheaper per token", cheaper[side], CHEAPER),
        ):
            is_goal = side == sides.PEER
            yield Row(
                name=f"{words}: {what}, mean ({min(percents):.1f} to {max(percents):.1f} %)",
                value=mean(percents),
                unit="%",
                goal=f">= {goal:g} %" if is_goal else "",
                met=mean(percents) >= goal if is_goal else None,
                source=_SOURCE,
            )


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
    yield from _figures(name, results)
    for other in rest:
        yield Row(
            name=f"{name}, {first.side} beside {other.side}: more tokens per GPU-hour",
            value=_more(first, other),
            unit="%",
            source=_SOURCE,
        )
        yield Row(
            name="  cheaper per token", value=_cheaper(first, other), unit="%", source=_SOURCE
        )


def _figures(name: str, results: Sequence[WeekResult]) -> Iterator[Row]:
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
        for cause, gpu_seconds in each.not_useful.items():
            yield Row(
                name=f"  not useful because of {cause}",
                value=100 * gpu_seconds / account.held,
                unit="%",
                source=_SOURCE,
            )
        yield Row(
            name="  dollars for a million tokens",
            value=each.dollars_per_million,
            unit="$",
            source=_SOURCE,
        )


def _vacancies(results: Sequence[WeekResult], watched: Sequence[Side]) -> Iterator[Row]:
    for each, side in zip(results, watched, strict=True):
        if not isinstance(side.decider, VacancyWatch):
            raise TypeError(f"{side.name} was not watched")
        bound = each.account.held / each.occupancy
        for cause, gpu_seconds in side.decider.gpu_seconds.items():
            yield Row(
                name=f"week, {each.side}: vacant of the work-conserving bound, {cause}",
                value=100 * gpu_seconds / bound,
                unit="%",
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
    return 100 * gain(ours, other)


def _cheaper(ours: WeekResult, other: WeekResult) -> float:
    return 100 * (1 - ours.dollars_per_million / other.dollars_per_million)


if __name__ == "__main__":
    main()
