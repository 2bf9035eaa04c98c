"""Every row of docs/architectures.md is what the installed transformers and our trainer do."""

from __future__ import annotations

from multiprocessing.connection import Connection

import pytest

from drumline_agent.rank_protocol.placement import Placement
from tests.gloo.gang import GangStarter
from tools.architectures.page import PAGE, listed
from tools.architectures.truth import YES, model_types, outcomes

TRAINED, REFUSED = listed(PAGE.read_text())


def outcome_rank(placement: Placement, pipe: Connection, name: str) -> None:
    [outcome] = outcomes(placement, [name])
    pipe.send(outcome)


@pytest.mark.extended(keep=4, of="runs of ranks")
@pytest.mark.parametrize("name", sorted(TRAINED))
def test_a_model_type_trains_as_in_a_plain_loop(gangs: GangStarter, name: str) -> None:
    outcome = gangs.run(outcome_rank, name, world_size=2)[0]
    assert outcome.trains, outcome
    [row] = [line for line in PAGE.read_text().splitlines() if line.startswith(f"| {name} |")]
    assert row.endswith("| yes |") == (outcome.tensor == YES), outcome


@pytest.mark.extended
@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_model_type_that_is_not_trained_has_a_reason(gangs: GangStarter, name: str) -> None:
    outcome = gangs.run(outcome_rank, name, world_size=2)[0]
    assert not outcome.trains, f"{name} trains now: run python -m tools.architectures"


def test_the_page_lists_every_model_type_of_the_installed_library() -> None:
    assert set(model_types()) == TRAINED | REFUSED
    assert len(TRAINED) >= 100
