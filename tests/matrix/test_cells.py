"""The matrix is as large as it says, and its orders can be carried out."""

from __future__ import annotations

from collections import defaultdict

from tests.matrix.cells import (
    BY_SIGNAL,
    OF_DEVICES,
    WORLD_SIZE,
    Cell,
    Fault,
    Moment,
    Role,
    every_cell,
    sample,
)
from tests.matrix.strikes import MAIN, OPENING, decode, encode, strikes_of

CELLS = every_cell()
WITH_DEVICES = every_cell(devices=True)


def test_at_least_twelve_faults_meet_at_least_eight_moments_in_over_two_hundred_cells() -> None:
    moments: dict[Fault, set[Moment]] = defaultdict(set)
    for cell in CELLS:
        moments[cell.fault].add(cell.moment)
    assert len(CELLS) == len(set(CELLS)) >= 200
    assert len([fault for fault in moments if len(moments[fault]) >= 8]) >= 12
    assert moments.keys() == set(Fault) - set(OF_DEVICES)
    assert {cell.role for cell in CELLS} == set(Role)


def test_names_are_unique() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_a_slice_depends_on_its_seed_alone_and_has_every_fault_first() -> None:
    chosen = sample(CELLS, seed=1, count=40)
    assert chosen == sample(CELLS, seed=1, count=40)
    assert chosen != sample(CELLS, seed=2, count=40)
    assert len(set(chosen)) == 40
    assert {cell.fault for cell in chosen} == set(Fault) - set(OF_DEVICES)
    assert {cell.moment for cell in chosen} == set(Moment)
    assert not [cell for cell in chosen if cell.slow]


def test_devices_hang_where_there_are_some_and_in_every_moment_of_a_step() -> None:
    more = set(WITH_DEVICES) - set(CELLS)
    assert {cell.fault for cell in more} == set(OF_DEVICES)
    for fault in OF_DEVICES:
        assert len([cell for cell in more if cell.fault is fault]) == 4


def test_every_cell_has_one_main_strike_that_hits_its_role() -> None:
    for cell in WITH_DEVICES:
        strikes = [strike for strike in strikes_of(cell) if strike.name.startswith(MAIN)]
        assert strikes[0].name == MAIN, cell.name
        assert strikes[0].pods == cell.role.pods, cell.name
        hit = {rank for strike in strikes for rank in strike.ranks}
        assert hit == set(cell.role.ranks), cell.name


def test_who_does_not_die_by_a_signal_from_outside_strikes_itself() -> None:
    for cell in CELLS:
        if cell.role.ranks and cell.fault not in {*BY_SIGNAL, Fault.OPERATOR_AWAY}:
            for strike in strikes_of(cell):
                assert strike.ranks == (strike.watcher,), cell.name


def test_a_second_fault_waits_for_a_first_one_that_spares_its_watcher() -> None:
    again = [cell for cell in CELLS if cell.moment in {Moment.RECOVERING, Moment.RESTORING}]
    assert again
    for cell in again:
        opening, *main = strikes_of(cell)
        assert opening.name == OPENING
        assert all(strike.after == OPENING for strike in main)
        assert not {strike.watcher for strike in main} & set(opening.ranks)
        assert not set(cell.role.ranks) & set(opening.ranks)


def test_orders_survive_their_way_through_the_environment() -> None:
    for cell in WITH_DEVICES:
        strikes = strikes_of(cell)
        assert decode(encode(strikes)) == strikes
        assert all(0 <= strike.watcher < WORLD_SIZE for strike in strikes)


def test_only_the_one_who_commits_can_fail_by_itself_at_a_commit() -> None:
    cell = Cell(fault=Fault.EXCEPTION, moment=Moment.COMMIT, role=Role.RANK_0)
    at_commit = [
        each_cell
        for each_cell in CELLS
        if each_cell.fault is cell.fault and each_cell.moment is cell.moment
    ]
    assert at_commit == [cell]
