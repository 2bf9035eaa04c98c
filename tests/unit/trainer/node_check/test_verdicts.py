"""Which members of a check are slow or wrong, and where it is the link between two."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from drumline_contract.config import ConfigError
from drumline_trainer.node_check.options import CheckOptions
from drumline_trainer.node_check.program import verdict_of
from drumline_trainer.node_check.verdicts import (
    ROUNDS,
    MemberFigures,
    NodeCheck,
    Pair,
    judged,
    pairs_of,
)


def check(
    members: int = 6,
    *,
    slow: Mapping[Pair, float] | None = None,
    matmul: Mapping[int, float] | None = None,
    memory: Mapping[int, float] | None = None,
    wrong: Mapping[int, tuple[str, ...]] | None = None,
) -> NodeCheck:
    figures = [
        MemberFigures(
            index=index,
            matmul_tflops=(matmul or {}).get(index, 400.0),
            memory_gbps=(memory or {}).get(index, 2000.0),
            wrong=(wrong or {}).get(index, ()),
        )
        for index in range(members)
    ]
    pairs = [pair for number in range(ROUNDS) for pair in pairs_of(members, round_number=number)]
    return judged(figures, dict.fromkeys(pairs, 40.0) | dict(slow or {}))


def failed(checked: NodeCheck) -> dict[int, str]:
    return {member.index: member.failed for member in checked.members if member.failed}


@pytest.mark.parametrize("members", range(1, 12))
def test_everybody_has_two_partners_where_there_are_enough(members: int) -> None:
    first, second = (pairs_of(members, round_number=number) for number in range(ROUNDS))
    for pairs in (first, second):
        taking_part = [member for pair in pairs for member in pair]
        assert len(taking_part) == len(set(taking_part))
    assert not {frozenset(pair) for pair in first} & {frozenset(pair) for pair in second}
    for member in range(members):
        partners = sum(member in pair for pair in (*first, *second))
        if members % 2 == 0 and members > 2:
            assert partners == 2
        else:
            assert partners >= min(1, members - 1)


def test_all_are_fine() -> None:
    checked = check()
    assert (failed(checked), checked.links) == ({}, ())
    assert [member.pair_gbps for member in checked.members] == [(40.0, 40.0)] * 6


def test_who_is_slow_with_both_partners_is_slow_itself() -> None:
    checked = check(slow={(2, 3): 10.0, (1, 2): 12.0})
    assert (failed(checked), checked.links) == ({2: "network 30 % of the median"}, ())


def test_where_one_pair_alone_is_slow_it_is_the_link() -> None:
    checked = check(slow={(2, 3): 10.0})
    assert (failed(checked), checked.links) == ({}, ((2, 3),))


def test_of_an_odd_number_the_last_has_one_partner_who_speaks_for_it() -> None:
    checked = check(5, slow={(3, 4): 10.0})
    assert (failed(checked), checked.links) == ({4: "network 25 % of the median"}, ())


def test_figures_are_compared_with_the_median() -> None:
    checked = check(matmul={1: 300.0, 2: 321.0}, memory={3: 500.0})
    assert failed(checked) == {1: "matmul 75 % of the median", 3: "memory 25 % of the median"}


def test_of_two_nobody_is_slow_but_wrong_is_wrong() -> None:
    checked = check(2, matmul={1: 1.0}, wrong={1: ("matmul", "memory")})
    assert failed(checked) == {1: "matmul gives wrong results; memory gives wrong results"}


def test_the_worst_rank_stands_for_its_member() -> None:
    # A row for each rank: operations, right, bytes, right, bytes to the partner in each round.
    good = [4e14, 1.0, 2e12, 1.0, 40e9, 40e9]
    rows = [list(good) for _ in range(8)]
    rows[3] = [1e14, 1.0, 2e12, 0.0, 8e9, 8e9]
    checked = verdict_of(rows, ranks_per_member=2)
    assert failed(checked) == {
        1: "memory gives wrong results; matmul 25 % of the median; network 33 % of the median"
    }
    assert json.loads(checked.encode())["members"][0] == {
        "index": 0,
        "failed": "",
        "matmul_tflops": 400.0,
        "memory_gbps": 2000.0,
        "pair_gbps": [8.0, 40.0],
    }


def test_sizes_are_at_least_one() -> None:
    assert CheckOptions.parse(["--matrix", "64"]) == CheckOptions(matrix=64)
    with pytest.raises(ConfigError, match=r"--memory.*1.*0"):
        CheckOptions.parse(["--memory", "0"])
