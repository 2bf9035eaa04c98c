"""Mutants of quota, placement and preemption."""

from __future__ import annotations

from tools.mutants.target import ROOT, Target

ROOM = ROOT / "operator" / "drumline_scheduler"
AREAS = {
    "quota": (
        "quota_ledger",
        "cohorts",
        "user_limits",
        "usage_budgets",
        "preemption_policy",
        "pool_selection",
    ),
    "placement": (
        *("domain_selection", "packing", "slots", "topology", "slicing", "role_placement"),
        *("frontier", "spreading", "placer", "search", "what_if"),
    ),
    "preemption": (
        *("preemptor", "victims", "victim_scopes", "candidates", "bounds"),
        *("eviction_simulation", "node_costs"),
        *("surplus", "projection"),
    ),
}
UNIT, PROPERTY = "tests/unit/scheduler", "tests/property/test_scheduling"
OPTIMUM = f"{PROPERTY}_optimum.py"
QUOTA_REJECTIONS = f"{UNIT}/quota/test_quota_rejections.py"
DEFRAGMENTATION = f"{UNIT}/preemption/test_defragmentation.py"
TESTS = (
    UNIT,
    f"{PROPERTY}_pairs.py",
    f"{PROPERTY}_preemption_policy.py",
    f"{PROPERTY}_preemption.py::test_a_world_in_which_nothing_happens_calms_down",
    *(
        f"{OPTIMUM}::{name}[{part}]"
        for name in (
            "test_a_placement_is_the_best_of_all_and_a_refusal_is_true",
            "test_victims_cost_no_more_than_the_cheapest_lawful_ones",
        )
        for part in range(2)
    ),
)
"""What one CPU does in half a minute; a mutant meets those that reach its function."""
SLOW = (
    f"{UNIT}/forecast/test_expected_starts.py",
    f"{UNIT}/queueing/test_order_fair.py",
    f"{QUOTA_REJECTIONS}::test_every_remedy_of_quota_is_true_and_the_smallest",
    f"{DEFRAGMENTATION}::test_used_racks_stay_near_what_the_demand_needs_under_churn",
)
"""Of the room's tests; none is about quota, placement or preemption alone."""
SCHEDULER = Target(
    package=ROOM,
    areas=AREAS,
    tests=TESTS,
    options=tuple(f"--deselect={name}" for name in SLOW),
    goal=0.8,
)
