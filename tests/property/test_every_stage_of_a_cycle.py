"""An exception in any function that a cycle calls about a gang is the answer of one gang.

The functions are those of the code: all whose parameters are a gang or a running gang. A function
that no world calls must be listed here with a reason. So a new stage is tried, or fails the test.
"""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

from drumline_scheduler import BlockReason, Decisions, cycle, decide
from drumline_scheduler.fault_isolation import _FaultSearch, without
from drumline_scheduler.faults import Stage, deciding
from tests.property.planted_faults import (
    CallSite,
    PlantedError,
    cycle_of,
    full_world,
    may_be_planted,
    of_others,
    some_world,
    traced,
)
from tests.property.scheduling_worlds import World

ROOT = Path(__file__).parents[2] / "operator" / "drumline_scheduler"
WORLDS = [
    *(("full", number) for number in (238, 256, 160, 51, 15, 104, 40, 62, 208, 293, 2, 956, 26)),
    *(("some", number) for number in (146, 44, 263, 3)),
]
"""Worlds that together reach almost all functions: repairs, moves, relocations, resizes, groups,
growth of pools, overdue gangs, evictions for queues, preemptions and overrides."""
NOT_REACHED = {
    # Called with the budget of tries, which the worlds do not have.
    *("_late_again", "let_pass", "fields_of", "_spend"),
    # For parts of large gangs, and for gangs that need many new nodes.
    *("requests", "_least"),
    # For cycles with the cache of an earlier one.
    *("remove_admitted", "_holds", "_is_closed", "last"),
    # They describe an answer that is about to be given, within a stage that is reached.
    *("_pools_of", "_not_allowed", "_unlike", "_runtime", "_would_delay", "warning"),
    "_pod_text",
    # For gangs with volumes, within a stage that is reached.
    *("note", "forget", "sparing"),
    # Rare placements, within a stage that is reached.
    *("_enter_kept", "_kept", "_stay", "consolidation_of", "_consolidate", "give_up"),
    *("_allocation", "_is_shared", "back_off", "hold", "raise_for"),
}
WITHOUT_GANG = {Stage.CACHE, Stage.CYCLE, Stage.FORECAST}
"""Stages outside of the phases of a cycle."""


@cache
def of(kind: str, number: int) -> World:
    return full_world(number) if kind == "full" else some_world(number)


@cache
def called(kind: str, number: int) -> tuple[CallSite, ...]:
    """Return the calls about a gang in one cycle."""
    sites, given = dict[CallSite, int](), cycle_of(of(kind, number))  # worlds decide before, too
    with traced(sites):
        decide(given)
    return tuple(sites)


def functions() -> set[tuple[str, str]]:
    """Return the functions of a cycle with a parameter that is a gang, by file and name.

    Generators are left out, because a call to close one raises nothing.
    """
    declared = set[tuple[str, str]]()
    for path in ROOT.rglob("*.py"):
        if not may_be_planted(str(path)) or path.parent.name == "forecast":
            continue
        for each in ast.walk(ast.parse(path.read_text())):
            if isinstance(each, ast.FunctionDef) and not is_generator(each):
                parameters = (*each.args.args, *each.args.kwonlyargs)
                kinds = {ast.unparse(each.annotation) for each in parameters if each.annotation}
                if kinds & {"Gang", "Admitted"}:
                    declared.add((str(path.relative_to(ROOT)), each.name))
    return declared


def is_generator(function: ast.FunctionDef) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(function))


def stages() -> set[Stage]:
    """Return the stages that the code names."""
    return {
        Stage[each.attr]
        for path in ROOT.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text()))
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "Stage"
    }


def planted_at(kind: str, number: int, site: CallSite) -> Decisions:
    """Decide with an exception at one site, in each attempt. No gang is declared by bisection."""
    attempt, searches = cycle._decide, list[object]()
    bisected = _FaultSearch._bisected

    def planted_attempt(*args: Any, **named: Any) -> Decisions:
        with traced({}, raising=site):  # an exception ends the tracing
            return attempt(*args, **named)

    def watched(*args: Any) -> str | None:
        searches.append(args)
        return bisected(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cycle, "_decide", planted_attempt)
        patch.setattr(_FaultSearch, "_bisected", watched)
        decisions = decide(cycle_of(of(kind, number)))
    assert not searches, site
    return decisions


@pytest.mark.extended(keep=3)
@pytest.mark.parametrize(("kind", "number"), WORLDS)
def test_an_exception_in_any_call_about_a_gang_is_the_answer_of_one_gang(
    kind: str, number: int
) -> None:
    given = cycle_of(of(kind, number))
    waiting = {each.uid for each in given.pending}
    waiting |= {each.surplus.uid for each in given.pending if each.surplus is not None}
    sites = called(kind, number)
    # One gang for each function.
    chosen = {site.code: site for site in Random(number).sample(sites, len(sites))}
    for site in chosen.values():
        decisions = planted_at(kind, number, site)
        named = {fault.uid for fault in decisions.faults}
        assert len(named) == 1, site
        # A running gang may be met while one waiting gang is decided, which is named instead.
        assert named == {site.uid} if site.uid in waiting else named, site
        [fault] = decisions.faults
        left = without(given, named, plain=named if fault.slots_raise else ())
        assert of_others(decisions, fault.uid) == of_others(decide(left), fault.uid), site
        answers = {each.uid: each.reason for each in decisions.blocked}
        if any(each.uid in named for each in given.pending):
            assert answers[fault.uid] is BlockReason.SCHEDULER_ERROR, site


def test_the_worlds_reach_every_function_that_is_about_a_gang() -> None:
    reached = {
        (str(Path(site.code.co_filename).relative_to(ROOT)), site.code.co_name)
        for kind, number in WORLDS
        for site in called(kind, number)
    }
    missing = {name for name in functions() - reached if name[1] not in NOT_REACHED}
    assert not missing, "plant an exception in these: no world reaches them"
    known = {name for _, name in functions()}
    assert known >= NOT_REACHED, "these are gone"


def entered(kind: str, number: int) -> dict[str, str]:
    """Return the uid of a gang in each stage that a cycle enters."""
    seen, enter = dict[str, str](), deciding.__enter__

    def watched(self: deciding) -> None:
        seen.setdefault(self.stage, self.gang.uid)
        enter(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deciding, "__enter__", watched)
        decide(cycle_of(of(kind, number)))
    return seen


@pytest.mark.parametrize("stage", sorted(stages() - WITHOUT_GANG))
def test_an_exception_in_a_stage_names_the_stage_and_the_gang(stage: Stage) -> None:
    """The stages are those that the code names. Their first call raises."""
    kind, number, uid = next(
        (*place, uid) for place in WORLDS if (uid := entered(*place).get(stage)) is not None
    )
    enter = deciding.__enter__

    def raising(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and may_be_planted(frame.f_code.co_filename):
            raise PlantedError("planted")

    def entering(self: deciding) -> None:
        enter(self)
        if (self.stage, self.gang.uid) == (stage, uid):
            sys.settrace(raising)  # an exception ends the tracing

    before = sys.gettrace()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(deciding, "__enter__", entering)
            decisions = decide(cycle_of(of(kind, number)))
    finally:
        sys.settrace(before)
    assert [(fault.stage, fault.uid) for fault in decisions.faults] == [(stage, uid)]
