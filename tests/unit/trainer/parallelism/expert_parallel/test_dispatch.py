from __future__ import annotations

import torch

from drumline_trainer.parallelism.expert_parallel.dispatch import transposed


def test_pieces_of_rows_change_places_and_come_back() -> None:
    counts = [[2, 0, 1], [1, 3, 0]]  # by rank, by expert
    rows_RD = torch.tensor([[0], [0], [2], [10], [11], [11], [11]])
    by_expert = transposed(rows_RD, counts)
    assert by_expert.flatten().tolist() == [0, 0, 10, 11, 11, 11, 2]
    back = transposed(by_expert, [list(line) for line in zip(*counts, strict=True)])
    assert back.equal(rows_RD)


def test_no_rows_at_all_stay_rows_of_the_same_width() -> None:
    assert transposed(torch.empty(0, 5), [[0, 0]]).shape == (0, 5)
