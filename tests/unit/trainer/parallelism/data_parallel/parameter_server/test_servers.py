"""Which ranks serve, and which rows of the weights they have."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_trainer.parallelism.data_parallel.parameter_server.servers import (
    ServerRows,
    server_places,
)
from drumline_trainer.sharding.boxes import Box, tiles
from drumline_trainer.sharding.slices import TensorSlice

SHAPES = [(7, 3), (5,), (1, 8), (3, 2, 4)]


def rows(servers: int) -> ServerRows:
    """Of a worker that is the second of two tensor ranks, in two copies."""
    slices = tuple(
        TensorSlice(
            name=str(number),
            shape=(2 * shape[0], *shape[1:]),
            box=Box(offsets=(shape[0], *(0 for _ in shape[1:])), shape=shape),
            tensor=torch.randn(shape, generator=torch.Generator().manual_seed(number)),
            copies=4,
            copy=3,
        )
        for number, shape in enumerate(SHAPES)
    )
    return ServerRows(slices=slices, servers=servers)


def test_servers_are_spread_evenly() -> None:
    assert server_places(8, 3) == [0, 2, 5]
    assert server_places(4, 4) == [0, 1, 2, 3]
    assert server_places(5, 1) == [0]


@settings(deadline=None)
@given(st.integers(1, 9))
def test_rows_are_all_of_the_weights_once(servers: int) -> None:
    cut = rows(servers)
    tensors = [each_slice.tensor for each_slice in cut.slices]
    packed = [cut.pack(tensors, server) for server in range(servers)]
    assert [len(row) for row in packed] == [cut.size(server) for server in range(servers)]
    held = [cut.held(row, server, copies=2) for server, row in enumerate(packed)]
    for number, tensor_slice in enumerate(cut.slices):
        parts = [slices[number] for slices in held]
        within = [
            Box(
                offsets=(p.box.offsets[0] - tensor_slice.box.offsets[0], *p.box.offsets[1:]),
                shape=p.box.shape,
            )
            for p in parts
            if p.box.elements
        ]
        assert tiles(tensor_slice.tensor.shape, within)
        assert {(part.copies, part.copy) for part in parts} == {(2, 1)}
    before = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.fill_(torch.nan)
    for server, row in enumerate(packed):
        cut.write(row, server)
    assert all(torch.equal(a, b) for a, b in zip(tensors, before, strict=True))


def test_servers_have_nearly_equal_bytes_and_others_none() -> None:
    cut = rows(2)
    sizes = [cut.size(server) for server in range(2)]
    assert sum(sizes) == sum(each_slice.tensor.numel() for each_slice in cut.slices)
    assert max(sizes) - min(sizes) <= sum(each_slice.tensor[0].numel() for each_slice in cut.slices)
    assert cut.size(2) == 0
    assert all(not item.box.elements for item in cut.held(torch.empty(0), 2, copies=2))
