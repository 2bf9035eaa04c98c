"""A notice is acted on by all ranks at one step boundary, or by none."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from drumline_agent.rank_protocol.heartbeat import Heartbeat
from drumline_agent.rank_protocol.messages import NoticeSaved, RankMessage
from drumline_agent.rank_protocol.orders import SaveNotice, Withdraw
from drumline_contract import ExitCode
from drumline_contract.config import TrainerConfig
from tests.gloo.configs import small
from tests.gloo.gang import GangStarter
from tests.gloo.standin import StandIn
from tests.gloo.stored import trainer_state

pytestmark = pytest.mark.extended(keep=2)

ENDLESS = 1_000_000


def config_of(folder: Path, **changes: Any) -> TrainerConfig:
    """A run that does not end, and saves nothing unasked."""
    return small(folder, **{"steps": ENDLESS, "checkpoint": {"every_steps": ENDLESS}, **changes})


def notice(name: str, *, leave: bool) -> SaveNotice:
    return SaveNotice(id=name, leave=leave)


def saved(word: RankMessage) -> bool:
    return isinstance(word, NoticeSaved)


def past(step: int):  # noqa: ANN201 - a predicate of words
    return lambda word: isinstance(word, Heartbeat) and word.step >= step


def answers(gang: StandIn) -> NoticeSaved:
    """The answer, which must be the same from all ranks."""
    [first, *rest] = gang.hear(saved)
    assert isinstance(first, NoticeSaved)
    assert rest == [first] * len(rest)
    return first


def test_all_save_at_one_step_and_leave(gangs: GangStarter, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=2, folder=folder) as gang:
        gang.start()
        gang.hear(past(3))
        for rank in gang.ranks.values():
            rank.tell(notice("n1", leave=True))
        answer = answers(gang)
        assert gang.exit_codes() == {ExitCode.PREEMPTED}
    assert answer.step is not None
    assert (answer.notice, answer.error) == ("n1", "")
    stored = folder / f"step-{answer.step:08d}"
    assert (stored / "manifest.sha256").read_text().split()[0] == answer.digest
    assert trainer_state(stored)["cursor"] == 4 * answer.step


def test_one_that_only_some_ranks_have_is_not_acted_on(gangs: GangStarter, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=2, folder=folder) as gang:
        gang.start()
        gang.hear(past(1))
        gang.ranks[1].tell(notice("n1", leave=True))
        [_, heard] = gang.hear(past(2))
        assert isinstance(heard, Heartbeat)
        gang.hear(past(heard.step + 5))
        assert not any(saved(word) for rank in gang.ranks.values() for word in rank.said)
        assert list(folder.glob("step-*")) == []
        gang.ranks[0].tell(notice("n1", leave=False))
        assert answers(gang).notice == "n1"


def test_two_that_ask_for_the_same_save_are_answered_by_one(
    gangs: GangStarter, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=2, folder=folder) as gang:
        gang.start()
        gang.hear(past(1))
        for number, rank in gang.ranks.items():
            rank.tell(notice(f"pod-{number}", leave=True))
        words = gang.hear(saved)
        assert gang.exit_codes() == {ExitCode.PREEMPTED}
    answered = [word for word in words if isinstance(word, NoticeSaved)]
    assert [word.notice for word in answered] == ["pod-0", "pod-1"]
    assert len({(word.step, word.digest) for word in answered}) == 1


def test_a_withdrawn_one_is_forgotten(gangs: GangStarter, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with StandIn(gangs, config_of(tmp_path), world_size=2, folder=folder) as gang:
        gang.start()
        gang.hear(past(1))
        gang.ranks[0].tell(notice("n1", leave=True))
        gang.ranks[0].tell(Withdraw(id="n1"))
        time.sleep(1)  # it has no way to say that it has read it
        gang.ranks[1].tell(notice("n1", leave=True))
        gang.hear(past(20))
        gang.ranks[1].tell(Withdraw(id="n1"))
        for rank in gang.ranks.values():
            rank.tell(notice("n2", leave=False))
        first = answers(gang)
        for rank in gang.ranks.values():
            rank.tell(notice("n3", leave=True))
        second = answers(gang)
        assert gang.exit_codes() == {ExitCode.PREEMPTED}
    assert (first.notice, second.notice) == ("n2", "n3")
    assert first.step is not None
    assert second.step is not None
    assert first.step < second.step  # it went on training in between


def test_a_step_that_is_saved_anyway_is_saved_once(gangs: GangStarter, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = config_of(tmp_path, checkpoint={"every_steps": 1, "keep": 1_000})
    with StandIn(gangs, config, world_size=2, folder=folder) as gang:
        gang.start()
        gang.hear(past(2))
        for rank in gang.ranks.values():
            rank.tell(notice("n1", leave=True))
        answer = answers(gang)
        assert gang.exit_codes() == {ExitCode.PREEMPTED}
        took = {
            beat.checkpoint_seconds
            for beat in gang.beats(attempt=0)
            if beat.rank == 0 and beat.checkpoint_step == answer.step
        }
        assert len(took) == 1  # another save would have taken another time


def test_without_a_folder_the_answer_says_so_and_training_goes_on(
    gangs: GangStarter, tmp_path: Path
) -> None:
    with StandIn(gangs, config_of(tmp_path), world_size=2, folder=None) as gang:
        gang.start()
        gang.hear(past(1))
        for rank in gang.ranks.values():
            rank.tell(notice("n1", leave=True))
        answer = answers(gang)
        assert (answer.step, "no checkpoint folder" in answer.error) == (None, True)
        gang.hear(past(40))


@pytest.mark.parametrize("leave", [True, False])
def test_what_does_not_read_back_is_not_acknowledged(
    gangs: GangStarter, tmp_path: Path, leave: bool
) -> None:
    """The module damages what was written before it is read back."""
    folder = tmp_path / "run"
    module = "tests.gloo.mutants.storage_that_forgets"
    with StandIn(gangs, config_of(tmp_path), world_size=2, folder=folder, module=module) as gang:
        gang.start()
        gang.hear(past(1))
        for rank in gang.ranks.values():
            rank.tell(notice("n1", leave=leave))
        answer = answers(gang)
        assert answer.step is None
        assert "digest differs" in answer.error
        gang.hear(past(40))
