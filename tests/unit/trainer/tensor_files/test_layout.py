"""Headers of safetensors files that strangers may have written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from safetensors import SafetensorError

from drumline_trainer.tensor_files.layout import LENGTH_BYTES, StoredTensor, parse_header


def parsed(shape: Any, offsets: Any = (0, 8), *, data: int = 8) -> StoredTensor:
    """A header of a single tensor, in a file with so many bytes of data."""
    entry = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    header = json.dumps({"w": entry}).replace('"1e999"', "1e999").encode()
    return parse_header(header, file_bytes=LENGTH_BYTES + len(header) + data)["w"]


@pytest.mark.parametrize(
    ("shape", "offsets"), [([2], [0, 8]), ([1] * 64, [4, 8]), ([], [0, 4]), ([3, 0, 9], [8, 8])]
)
def test_a_tensor_lies_where_its_shape_fits(shape: list[int], offsets: list[int]) -> None:
    tensor = parsed(shape, offsets)
    assert tensor.shape == tuple(shape)
    assert tensor.stop - tensor.start == offsets[1] - offsets[0]


@pytest.mark.parametrize(
    ("shape", "offsets"),
    [
        ([float("inf")], [0, 8]),
        (["1e999"], [0, 8]),
        ([2], [0, "1e999"]),
        ([2], [float("nan"), 8]),
        ([2.0], [0, 8]),
        ([True, 2], [0, 8]),
        ([2], [False, 8]),
        ([-1, -2], [0, 8]),
        ([0, -1], [0, 0]),
        ([0], [0, 8]),
        ([1], [0, 6]),
        ([1], [8, 4]),
        ([1, 3], [0, 12]),
        ([1] * 65, [0, 4]),
    ],
)
def test_a_shape_or_a_place_that_is_none_is_refused(shape: list[Any], offsets: list[Any]) -> None:
    with pytest.raises(SafetensorError):
        parsed(shape, offsets)
