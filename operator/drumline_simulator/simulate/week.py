"""Run `drumline simulate --week`: seven days under each side, as table, JSON, pictures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, TextIO

from drumline_cli.columns import columns
from drumline_cli.errors import BadInput
from drumline_cli.formatting import count, duration, percent
from drumline_simulator.results.time_account import Cause
from drumline_simulator.simulate.progress_bar import ProgressBar
from drumline_simulator.week import sides
from drumline_simulator.week.setting import NODE_GPUS, Setting
from drumline_simulator.week.study import WeekResult, gain, largest_gain, result, run_week
from drumline_simulator.week.trace import arrivals

# matplotlib is optional (the simulator extra): only types are named here.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

_DAY: Final = 86_400.0
_HEADINGS: Final = (
    "SIDE",
    "TOKENS/GPU-HOUR",
    "$/M TOKENS",
    "USEFUL",
    "LOST",
    "IDLE",
    "SAVING",
    "RESTARTING",
    "OCCUPANCY",
    "MEAN WAIT",
    "PREEMPTED",
    "ENDED",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Week:
    """Setting and results of the simulation. The first result is Drumline's."""

    title: str
    results: tuple[WeekResult, ...]


def run_sides(*, nodes: int, days: float, seed: int, screen: TextIO | None) -> Week:
    """Simulate each side.

    Args:
        nodes: number of nodes.
        days: length of the period.
        seed: seed of all draws.
        screen: terminal for progress. None: none.

    Raises:
        BadInput: no job is submitted in that period.
    """
    setting = Setting(nodes=nodes, reserved_nodes=nodes // 4, seconds=days * _DAY, seed=seed)
    jobs = arrivals(setting)
    if not jobs:
        raise BadInput("no job is submitted in this period")
    results: list[WeekResult] = []
    for side in (sides.ours(), sides.peer(), sides.best_peer()):
        with ProgressBar(title=side.name, screen=screen) as bar:
            outcome = run_week(setting, side=side, jobs=jobs, watch=bar)
        results.append(result(outcome, setting=setting, side=side.name))
    title = f"{len(jobs)} jobs in {days:g} days on {nodes * NODE_GPUS} GPUs (seed {seed})"
    return Week(title=title, results=tuple(results))


def as_table(week: Week) -> str:
    """Return a row per side, and Drumline compared with each other side."""
    rows = [_HEADINGS, *(_cells(each) for each in week.results)]
    first, *rest = week.results
    lines = [
        week.title,
        "",
        *columns(rows, left=(0,)),
        "",
        *columns(_by_cause(week.results), left=(0,)),
        "",
        *(compared(first, other) for other in rest),
    ]
    return "\n".join(lines) + "\n"


def _by_cause(results: Sequence[WeekResult]) -> list[tuple[str, ...]]:
    """Return a row per cause and a column per side: fractions of what jobs held."""
    rows = [("NOT USEFUL BECAUSE OF", *(each.side for each in results))]
    for cause in Cause:
        parts = [each.not_useful[cause] / each.account.held for each in results]
        if any(parts):
            rows.append((cause, *map(percent, parts)))
    return rows


def as_json(week: Week) -> str:
    """Return the results as JSON."""
    by_side = {each.side: _values(each) for each in week.results}
    return json.dumps({"title": week.title, "sides": by_side}, indent=2) + "\n"


def compared(ours: WeekResult, other: WeekResult) -> str:
    """Compare Drumline with another side in one sentence."""
    more, limit = gain(ours, other), largest_gain(other)
    dollars = ours.dollars_per_million / other.dollars_per_million - 1
    return (
        f"{ours.side} compared with {other.side}: {100 * more:+.1f} % tokens per GPU-hour"
        f" (at most {100 * limit:+.1f} %), {100 * dollars:+.1f} % dollars per token"
    )


def pictures(week: Week) -> dict[str, Figure]:
    """Draw the pictures.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from drumline_simulator.results import charts  # noqa: PLC0415 - optional: the simulator extra

    accounts = [(each.side, each.account) for each in week.results]
    return {"simulated-week": charts.gpu_time(accounts)}


def _cells(each: WeekResult) -> tuple[str, ...]:
    account = each.account
    parts = (account.useful, account.lost, account.idle, account.saving, account.restarting)
    return (
        each.side,
        f"{each.tokens_per_gpu_hour / 1e6:.2f} M",
        f"{each.dollars_per_million:.4f}",
        *(percent(part / account.held) for part in parts),
        percent(each.occupancy),
        duration(each.mean_wait_seconds),
        count(each.preempted),
        count(each.jobs_ended),
    )


def _values(each: WeekResult) -> dict[str, Any]:
    values = asdict(each)
    del values["side"]
    return {
        **values,
        "tokens_per_gpu_hour": each.tokens_per_gpu_hour,
        "dollars_per_million": each.dollars_per_million,
        "goodput": each.goodput,
    }
