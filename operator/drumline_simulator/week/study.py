"""Run a setting under each side, and compute the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from drumline_simulator.engine.simulation import Decider, SimulationProgress, simulate
from drumline_simulator.results.cost import HourlyPrices
from drumline_simulator.results.occupancy import occupancy
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.results.time_account import Cause, TimeAccount, total, total_by_cause
from drumline_simulator.week.setting import Setting
from drumline_simulator.week.sides import Side
from drumline_simulator.week.trace import arrivals
from drumline_simulator.workload import Arrival

TOKENS_PER_GPU_SECOND = 6667.0
"""Llama 3.1 8B on 8 H100 with compile, as published by torchtitan. Ratios do not depend on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeekResult:
    """Results of a side in a setting."""

    side: str
    committed_tokens: float
    """Tokens of all jobs in their newest checkpoints at the end."""
    gpu_hours: float
    """GPU-hours of existing nodes, used or not."""
    dollars: float
    account: TimeAccount
    not_useful: Mapping[Cause, float]
    """Held GPU-seconds that were not useful, by cause."""
    occupancy: float
    """Held GPU-seconds as a fraction of the work-conserving bound."""
    jobs_ended: int
    preempted: int
    mean_wait_seconds: float

    @property
    def tokens_per_gpu_hour(self) -> float:
        """Return committed tokens per paid GPU-hour."""
        return self.committed_tokens / self.gpu_hours

    @property
    def dollars_per_million(self) -> float:
        """Return dollars per million committed tokens."""
        return 1e6 * self.dollars / self.committed_tokens

    @property
    def goodput(self) -> float:
        """Return committed work as a fraction of the GPU-hours that jobs held."""
        return self.committed_tokens / TOKENS_PER_GPU_SECOND / self.account.held


def gain(ours: WeekResult, other: WeekResult) -> float:
    """Return how many more tokens per GPU-hour one side makes than another, as a fraction."""
    return ours.tokens_per_gpu_hour / other.tokens_per_gpu_hour - 1


def largest_gain(other: WeekResult) -> float:
    """Return the gain over a side if nothing that it holds were wasted, as a fraction."""
    return 1 / other.goodput - 1


def run_week(
    setting: Setting,
    *,
    side: Side,
    jobs: Sequence[Arrival] | None = None,
    decider: Decider | None = None,
    watch: Callable[[SimulationProgress], None] | None = None,
) -> Outcome:
    """Simulate one side.

    Args:
        setting: the conditions.
        side: the side.
        jobs: trace. None: the setting's own.
        decider: replaces the side's own decider, to observe it.
        watch: called with the progress.
    """
    faults = setting.node_faults()
    return simulate(
        cluster=setting.cluster(),
        arrivals=arrivals(setting) if jobs is None else jobs,
        policy=side.policy,
        execution=side.execution,
        outages=faults.outages,
        faults=faults.faults,
        seed=setting.seed,
        until=setting.seconds,
        decider=decider or side.decider,
        watch=watch,
    )


def result(outcome: Outcome, *, setting: Setting, side: str) -> WeekResult:
    """Return the figures of an outcome.

    Args:
        outcome: result of the simulation.
        setting: cluster and period.
        side: name of the side.
    """
    prices = HourlyPrices(setting.cluster().terms, seed=setting.seed)
    waits = [job.waited_seconds(outcome.ended_at) for job in outcome.jobs]
    committed = sum(job.committed_seconds * job.gpus for job in outcome.jobs)
    return WeekResult(
        side=side,
        committed_tokens=committed * TOKENS_PER_GPU_SECOND,
        gpu_hours=sum(lease.gpu_hours for lease in outcome.leases),
        dollars=prices.cost(outcome.leases),
        account=total(job.account for job in outcome.jobs),
        not_useful=total_by_cause(job.not_useful for job in outcome.jobs),
        occupancy=occupancy(
            outcome, cluster=setting.cluster(), outages=setting.node_faults().outages
        ),
        jobs_ended=sum(job.ended_at is not None for job in outcome.jobs),
        preempted=sum(job.preempted for job in outcome.jobs),
        mean_wait_seconds=sum(waits) / len(waits) if waits else 0.0,
    )
