"""Policies that a trace is run under, to be compared: the configured one and two plain ones.

The plain ones are what a cluster has without a scheduler worth its name. They are run by the same
engine with everything switched off but quota and placement, so a difference is the policy's alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from drumline.scheduling import Policy, PreemptionRule, WaitingRule
from drumline.simulator.input.cluster_file import Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A name and everything that is simulated under it."""

    name: str
    setup: Setup


CONFIGURED = "drumline"
BEST_EFFORT = "best-effort FIFO"
STRICT = "strict FIFO"


def contenders(setup: Setup) -> tuple[Contender, ...]:
    """The configured policy first, then the plain ones."""
    return (
        Contender(name=CONFIGURED, setup=setup),
        Contender(name=BEST_EFFORT, setup=_plain(setup, waiting=WaitingRule.BEST_EFFORT)),
        Contender(name=STRICT, setup=_plain(setup, waiting=WaitingRule.STRICT)),
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
