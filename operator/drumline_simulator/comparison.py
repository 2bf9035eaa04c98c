"""Select the compared policies: the configured policy and two FIFO baselines.

The baselines run on the same engine with only quota and placement enabled, so that differences in
the results come from the policy alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from drumline_scheduler import Policy, PreemptionRule, WaitingRule
from drumline_simulator.input.cluster_file import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedPolicy:
    """A policy's name and its setup."""

    name: str
    setup: Setup


CONFIGURED = "drumline"
BEST_EFFORT = "best-effort FIFO"
STRICT = "strict FIFO"


def compared_policies(setup: Setup) -> tuple[ComparedPolicy, ...]:
    """Return the configured policy first, then the baselines."""
    return (
        ComparedPolicy(name=CONFIGURED, setup=setup),
        ComparedPolicy(name=BEST_EFFORT, setup=_plain(setup, waiting=WaitingRule.BEST_EFFORT)),
        ComparedPolicy(name=STRICT, setup=_plain(setup, waiting=WaitingRule.STRICT)),
    )


def _plain(setup: Setup, *, waiting: WaitingRule) -> Setup:
    queues = tuple(
        replace(queue, preemption=PreemptionRule(), user_limit=None)
        for queue in setup.cluster.queues
    )
    return replace(
        setup,
        cluster=replace(setup.cluster, queues=queues),
        policy=Policy(waiting=waiting, history_weight=0.0),
    )
