"""Which pools a gang is tried in by capacity type and price, and what it is told if in none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drumline_scheduler import BlockReason, Decisions, Gang, NodeOffer, Pool, Snapshot
from drumline_scheduler.model import CapacityType, PriceRule, SpotRule
from drumline_scheduler.queueing.order import BorrowingLevels
from drumline_scheduler.quota.pool_selection import PoolSelector
from drumline_scheduler.quota.quota_ledger import ledger_of
from tests.texts import missing
from tests.unit.scheduler.builders import BEST_EFFORT, admitted, cluster, gang, node, queue, run

DEMAND = Pool(name="demand", levels=("rack",), price=2_500_000)
SPOT = Pool(name="spot", levels=("rack",), capacity=CapacityType.SPOT, price=900_000)
DEAR_SPOT = replace(SPOT, name="dear-spot", price=3_000_000)
BOTH = {"demand": 8, "spot": 8}


def site(
    *pools: Pool,
    rule: PriceRule | None = None,
    nominal: dict[str, int] | None = None,
    **changes: object,
) -> Snapshot:
    """A node of two GPUs in each pool, and a queue with this rule."""
    nodes = [node(f"{pool.name}-0", pool=pool.name) for pool in pools]
    own = queue("research", nominal=nominal or {pool.name: 8 for pool in pools})
    own = replace(own, price_rule=rule or PriceRule())
    return replace(cluster(*nodes, queues=(own,), **changes), pools=pools)  # type: ignore[arg-type]


def starts(decisions: Decisions) -> dict[str, str]:
    return {placed.key.partition("/")[2]: placed.pool for placed in decisions.placed}


def spot(rule: SpotRule) -> PriceRule:
    return PriceRule(spot=rule)


@pytest.mark.parametrize(
    ("rule", "pools"),
    [
        (None, ["spot", "demand", "dear-spot"]),
        (SpotRule.PREFER, ["spot", "dear-spot", "demand"]),
        (SpotRule.AVOID, ["demand", "spot", "dear-spot"]),
        (SpotRule.ONLY, ["spot", "dear-spot"]),
        (SpotRule.NEVER, ["demand"]),
    ],
)
def test_pools_are_filled_in_the_order_of_the_rule(rule: SpotRule | None, pools: list[str]) -> None:
    snapshot = site(DEMAND, SPOT, DEAR_SPOT, rule=PriceRule(spot=rule))
    jobs = [gang(f"g{turn}", gpus=2, at=float(turn)) for turn in range(len(pools))]
    assert list(starts(run(snapshot, *jobs)).values()) == pools


def test_a_pool_that_loses_much_work_is_not_cheap() -> None:
    """0.90 with twice as much work lost as kept costs 2.70."""
    snapshot = site(DEMAND, replace(SPOT, lost_percent=200))
    assert starts(run(snapshot, gang("a"))) == {"a": "demand"}


def test_a_job_that_waits_for_a_full_spot_pool_falls_back_and_the_next_one_returns() -> None:
    snapshot = site(DEMAND, SPOT, rule=spot(SpotRule.PREFER))
    held = admitted(gang("old", gpus=2), "spot-0", pool="spot")
    full = site(DEMAND, SPOT, rule=spot(SpotRule.PREFER), running=[held])
    assert starts(run(full, gang("a", gpus=2))) == {"a": "demand"}
    assert starts(run(snapshot, gang("a", gpus=2))) == {"a": "spot"}


def test_the_word_of_the_job_comes_first_and_never_widens_what_its_queue_allows() -> None:
    avoiding = gang("a", price_rule=spot(SpotRule.AVOID))
    assert starts(run(site(DEMAND, SPOT, rule=spot(SpotRule.PREFER)), avoiding)) == {"a": "demand"}
    preferring = gang("a", price_rule=spot(SpotRule.PREFER))
    assert starts(run(site(DEMAND, SPOT, rule=spot(SpotRule.NEVER)), preferring)) == {"a": "demand"}
    rich = gang("a", price_rule=PriceRule(max_price=9_000_000))
    (blocked,) = run(site(DEMAND, rule=PriceRule(max_price=2_000_000)), rich).blocked
    assert blocked.reason is BlockReason.PRICE_TOO_HIGH


@pytest.mark.parametrize(
    ("rule", "own", "reason", "message"),
    [
        (
            PriceRule(max_price=2_000_000),
            PriceRule(),
            BlockReason.PRICE_TOO_HIGH,
            "queue research pays at most 2.00 per GPU-hour, but it may only be placed in",
        ),
        (
            PriceRule(max_price=2_400_000),
            PriceRule(max_price=1_000_000),
            BlockReason.PRICE_TOO_HIGH,
            "the job pays at most 1.00 per GPU-hour",
        ),
        (
            spot(SpotRule.ONLY),
            PriceRule(),
            BlockReason.CAPACITY_TYPE_NOT_ACCEPTED,
            "queue research uses spot pools only, but it may only be placed in demand (",
        ),
    ],
)
def test_a_job_without_a_pool_that_suits_is_told_whose_rule_it_is(
    rule: PriceRule, own: PriceRule, reason: BlockReason, message: str
) -> None:
    (blocked,) = run(site(DEMAND, rule=rule), gang("a", price_rule=own)).blocked
    assert blocked.reason is reason
    assert blocked.message.startswith(message)


def test_rules_of_queue_and_job_that_exclude_each_other_are_both_named() -> None:
    own = gang("a", price_rule=spot(SpotRule.NEVER))
    (blocked,) = run(site(DEMAND, SPOT, rule=spot(SpotRule.ONLY)), own).blocked
    assert not missing(blocked.message, "queue research", "spot")


def test_a_price_that_nobody_knows_is_above_every_limit() -> None:
    bare = replace(DEMAND, price=None)
    (blocked,) = run(site(bare, rule=PriceRule(max_price=1_000_000)), gang("a")).blocked
    assert "demand (OnDemand, no price)" in blocked.message


def test_two_jobs_that_differ_in_their_rules_alone_have_answers_of_their_own() -> None:
    poor, plain = (
        gang("poor", price_rule=PriceRule(max_price=1_000_000)),
        gang("plain", at=1.0),
    )
    decisions = run(site(DEMAND), poor, plain)
    assert starts(decisions) == {"plain": "demand"}
    assert [blocked.key for blocked in decisions.blocked] == ["training/poor"]


def test_no_job_grows_where_it_costs_too_much() -> None:
    elastic: Gang = gang("a", nodes=2, sizes=(1, 2))
    running = [admitted(elastic, "demand-0", pool="demand")]
    limit = PriceRule(max_price=2_500_000)
    assert run(site(DEMAND, rule=limit, running=running)).resized
    dearer = replace(DEMAND, price=2_500_001)
    assert not run(site(dearer, rule=limit, running=running)).resized


def test_a_job_borrows_only_where_it_may_start() -> None:
    """Of two jobs that are equal but for their rules one borrows: it is not the other's answer."""
    alone = site(DEMAND, SPOT, nominal={"demand": 8, "spot": 0})
    own = replace(alone.queues[0], parent="org")
    snapshot = replace(alone, queues=(own, queue("org", nominal=BOTH)))
    quota = ledger_of(snapshot=snapshot, policy=BEST_EFFORT)
    pools = PoolSelector(pools=snapshot.pools, quota=quota)
    levels = BorrowingLevels(quota=quota, pools=pools, queues=quota.tree.queues)
    assert not any(levels.lowest(gang("a", price_rule=spot(SpotRule.NEVER))))
    assert any(levels.lowest(gang("b", price_rule=spot(SpotRule.ONLY))))


@pytest.mark.parametrize(("rule", "pool"), [(SpotRule.AVOID, "demand"), (SpotRule.PREFER, "spot")])
def test_new_nodes_are_asked_of_the_pool_that_is_tried_first(rule: SpotRule, pool: str) -> None:
    offers = tuple(
        NodeOffer(node=node("new", pool=name), pool_limit=9) for name in ("spot", "demand")
    )
    snapshot = replace(site(DEMAND, SPOT, rule=spot(rule)), offers=offers)
    decisions = run(snapshot, gang("a", nodes=4, gpus=2))
    assert [(need.pool, need.nodes) for need in decisions.needs_nodes] == [(pool, 3)]
