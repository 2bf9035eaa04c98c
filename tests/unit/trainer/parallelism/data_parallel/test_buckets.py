"""Buckets: packing by rows, and the order in which they leave."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from drumline_trainer.parallelism.data_parallel.buckets import (
    Bucket,
    BucketSender,
    buckets_of,
    piece_of,
)
from drumline_trainer.sharding.boxes import Box, tiles

SHAPES = [(4, 3), (1,), (5, 2), (7,), (0, 3), (2, 2, 2), (1, 5, 2)]


def parameters(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.full(shape, float(i))) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_pieces_tile_a_tensor(shape: tuple[int, ...], parts: int) -> None:
    boxes = [piece_of(shape, index=index, parts=parts) for index in range(parts)]
    assert tiles(shape, [box for box in boxes if box.elements])


def test_the_last_pieces_are_shorter_or_empty() -> None:
    assert [piece_of((5, 2), index=i, parts=4).shape[0] for i in range(4)] == [2, 2, 1, 0]
    assert piece_of((5, 2), index=2, parts=4) == Box(offsets=(4, 0), shape=(1, 2))


def test_a_tensor_of_one_row_is_cut_by_what_is_in_it() -> None:
    assert piece_of((1, 4, 3), index=1, parts=2) == Box(offsets=(0, 2, 0), shape=(1, 2, 3))


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_a_row_of_the_packed_matrix_is_one_rank_s_pieces(parts: int) -> None:
    weights = parameters(*SHAPES)
    tensors = [torch.randn(shape) for shape in SHAPES]
    bucket = Bucket(parameters=tuple(weights), parts=parts)
    matrix = bucket.pack(tensors, dtype=torch.float32)
    assert matrix.shape == (parts, bucket.width)
    for index in range(parts):
        for tensor, piece in zip(tensors, bucket.pieces(matrix[index], index=index), strict=True):
            box = piece_of(tensor.shape, index=index, parts=parts)
            assert torch.equal(piece, tensor[tuple(map(slice, box.offsets, box.ends))])
    bucket.unpack(matrix)
    assert all(map(torch.equal, weights, tensors))


def test_what_is_missing_is_packed_as_zeros_and_low_precision_as_fp32() -> None:
    bucket = Bucket(parameters=tuple(parameters((2,), (3,))))
    packed = bucket.pack([None, torch.ones(3, dtype=torch.bfloat16)], dtype=torch.float32)
    assert packed.tolist() == [[0, 0, 1, 1, 1]]
    assert packed.dtype is torch.float32


def test_buckets_go_from_the_last_parameter_to_the_first_up_to_a_size() -> None:
    a, b, c, d = parameters((2,), (2,), (9,), (1,))
    results = [bucket.parameters for bucket in buckets_of([a, b, c, d], limit=16)]
    assert [[id(p) for p in each] for each in results] == [[id(d)], [id(c)], [id(b), id(a)]]


def sends(
    *shapes: tuple[int, ...], expected: int = 1, rounds: int = 1
) -> tuple[list[nn.Parameter], list[int], BucketSender]:
    """Parameters 0, 1, ... in a bucket each: bucket 0 has the last of them."""
    weights, sent = parameters(*shapes), []
    buckets = buckets_of(weights, limit=1)
    return weights, sent, BucketSender(buckets, expected=expected, rounds=rounds, send=sent.append)


def backward(*weights: Tensor) -> None:
    torch.stack([weight.sum() for weight in weights]).sum().backward()


def test_a_full_bucket_waits_for_those_before_it() -> None:
    (first, middle, last), sent, order = sends((1,), (1,), (1,))
    backward(first)
    backward(middle)
    assert sent == []
    backward(last)
    assert sent == [0, 1, 2]
    order.finish()
    assert sent == [0, 1, 2]


def test_a_bucket_leaves_with_its_last_gradient_and_the_next_step_begins_anew() -> None:
    (first, last), sent, order = sends((1,), (1,), expected=2)
    for _ in range(2):
        sent.clear()
        backward(first, last)
        assert sent == []
        backward(first, last)
        assert sent == [0, 1]
        order.finish()


def test_buckets_that_are_not_full_leave_at_the_end() -> None:
    (first, _), sent, order = sends((1,), (1,))
    backward(first)
    order.finish()
    assert sent == [0, 1]


def test_a_gradient_that_comes_too_late_is_an_error_and_not_lost() -> None:
    (first, last), _, _ = sends((1,), (1,))
    backward(first, last)
    with pytest.raises(RuntimeError, match="more backward passes than were announced"):
        backward(first, last)


def test_every_round_ends_with_its_backward_pass() -> None:
    (first, last), sent, order = sends((1,), (1,), rounds=3)
    backward(last)
    assert sent == [0, 1]
    backward(first)
    assert sent == [0, 1] * 2
    order.finish()  # nothing had a gradient in the third
    assert sent == [0, 1] * 3
    backward(first, last)
    assert sent == [0, 1] * 4


def test_too_many_rounds_are_an_error() -> None:
    (weight,), _, _ = sends((1,), rounds=2)
    backward(weight)
    backward(weight)
    with pytest.raises(RuntimeError, match="more backward passes than were announced"):
        backward(weight)


def test_parameters_can_be_declared_complete() -> None:
    (first, last), sent, order = sends((1,), (1,), expected=4)
    backward(first, last)
    order.complete([last, *parameters((1,))])
    assert sent == [0]
    order.complete([first])
    assert sent == [0, 1]
