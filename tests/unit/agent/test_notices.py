"""What ranks are told of notices, with the orders written down instead of sent."""

from __future__ import annotations

import pytest

from drumline_trainer.agent.board import Board
from drumline_trainer.agent.notices import POD_ENDS, Notices
from drumline_trainer.contract import Notice
from drumline_trainer.heartbeat import NoticeSaved
from drumline_trainer.recovery.orders import Order, SaveNotice, Withdraw
from tests.unit.agent.settings_builder import agent_settings

PODS = {"a", "b"}


@pytest.fixture
def told() -> list[Order]:
    return []


@pytest.fixture
def notices(told: list[Order]) -> Notices:
    made = Notices(Board(agent_settings()))
    made.tell_ranks = told.append
    return made


def notice(name: str, *, leave: bool = False) -> Notice:
    return Notice(job_uid="job-uid", id=name, deadline=0, leave=leave)


def test_ranks_that_start_are_told_what_is_not_answered(
    notices: Notices, told: list[Order]
) -> None:
    notices.take(notice("save"))
    notices.repeat(present=PODS)
    asked = SaveNotice(id="save", deadline_seconds=0, leave=False)
    assert told == [asked, asked]
    notices.saved(NoticeSaved(notice="save", step=7))
    notices.repeat(present=PODS)
    assert told == [asked, asked]


def test_what_a_pod_asked_for_that_is_gone_is_forgotten(
    notices: Notices, told: list[Order]
) -> None:
    notices.take(notice(f"{POD_ENDS}a"))
    notices.repeat(present={"b", "c"})
    notices.take(notice("save"))
    assert told[1:] == [
        Withdraw(id=f"{POD_ENDS}a"),
        SaveNotice(id="save", deadline_seconds=0, leave=False),
    ]


def test_what_a_living_pod_asked_for_is_kept(notices: Notices, told: list[Order]) -> None:
    notices.take(notice(f"{POD_ENDS}a"))
    notices.repeat(present=PODS)
    assert [type(order) for order in told] == [SaveNotice, SaveNotice]
