"""Ranks of 1,024-rank runs hold what the planner says; all runs: `tools.bench.constructions`."""

from __future__ import annotations

import pytest

from tools.bench.constructions import CONSTRUCTIONS, rows_of


@pytest.mark.extended
@pytest.mark.parametrize("name", ["70B, FSDP 128, TP 8"])
def test_weights_and_moments_of_a_rank_are_within_3_percent_of_the_bill(name: str) -> None:
    assert CONSTRUCTIONS[name].preset == "llama-70b"
    held = [row for row in rows_of(name) if row.unit == "x"]
    assert len(held) == 2
    assert [row.name for row in held if not row.met] == []
