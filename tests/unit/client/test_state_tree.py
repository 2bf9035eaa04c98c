from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict
from typing import Any, Self

import numpy as np
import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from drumline_client.snapshot_file import SnapshotError
from drumline_client.state_tree import copy_into, pack, unpack


def kept(state: Any) -> tuple[Any, memoryview]:
    """The state as it comes out of a file."""
    packed = pack(state=state)
    buffer = torch.zeros(packed.bytes, dtype=torch.uint8)
    copy_into(buffer, packed)
    return json.loads(json.dumps(packed.description)), memoryview(bytearray(buffer.numpy().data))


def restored(state: Any, like: Any) -> Any:
    unpack(*kept(state), state=like)
    return like


def test_every_kind_of_value_comes_back_with_its_type() -> None:
    values = {
        "numbers": [1, -(2**70), 1.5, math.inf, True, None],
        "texts": ("a", "ü", b"\x00\xff"),
        5: OrderedDict(x=Counter({10: 2})),
        "empty": [{}, [], ()],
    }
    back = restored({"values": values}, {"values": None})["values"]
    assert back == values
    assert type(back[5]) is OrderedDict
    assert type(back[5]["x"]) is Counter
    assert math.isnan(restored({"nan": math.nan}, {"nan": 0})["nan"])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 5).t(),
        torch.randn(4).to(torch.bfloat16),
        torch.tensor(7),
        torch.tensor([True, False]),
        torch.empty(0, 3),
        torch.randn(3, dtype=torch.complex64),
        torch.randn(6)[::2],
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_tensors_come_back_bit_for_bit_in_place_and_new(tensor: torch.Tensor) -> None:
    target = torch.zeros_like(tensor)
    same = restored({"a": 1, "t": tensor}, {"a": 0, "t": target})["t"]
    new = restored({"a": 1, "t": tensor}, {"a": 0, "t": None})["t"]
    assert same is target
    for back in (same, new):
        assert back.dtype == tensor.dtype
        assert torch.equal(back, tensor)


def test_arrays_and_numpy_s_numbers_come_back() -> None:
    array = np.arange(12, dtype=np.uint32).reshape(3, 4)[:, ::2]
    back = restored({"a": array, "n": np.float32(0.5)}, {"a": None, "n": None})
    assert (back["a"] == array).all()
    assert (back["a"].dtype, back["n"]) == (array.dtype, 0.5)


def test_an_optimizer_without_moments_gets_those_of_the_snapshot() -> None:
    def trained(steps: int) -> tuple[torch.nn.Linear, torch.optim.AdamW]:
        torch.manual_seed(3)
        model = torch.nn.Linear(4, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for _ in range(steps):
            model(torch.ones(1, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        return model, optimizer

    model, optimizer = trained(3)
    fresh, fresh_optimizer = trained(0)
    restored(
        {"model": model, "optimizer": optimizer}, {"model": fresh, "optimizer": fresh_optimizer}
    )
    for each, of in ((model, optimizer), (fresh, fresh_optimizer)):
        each(torch.ones(1, 4)).square().sum().backward()
        of.step()
    assert torch.equal(fresh.weight, model.weight)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"x": {1, 2}}, r"state\['a'\]\['x'\]: a set cannot"),
        ([object()], r"state\['a'\]\[0\]: a object cannot"),
        (torch.eye(2).to_sparse(), "only dense tensors"),
        (torch.empty(2, device="meta"), "only dense tensors"),
        ({(1, 2): 3}, "a key of type tuple"),
        (lambda: None, "a function cannot"),
        (TwoTensor(torch.ones(2), torch.zeros(2)), "a TwoTensor cannot"),
        (np.datetime64("2026-11-30"), "a datetime64 cannot"),
        (np.complex64(1j), "a complex64 cannot"),
        (np.longdouble(1.5), "a longdouble cannot"),
        (np.zeros(1, dtype="i4,f4")[0], "a void cannot"),
        (np.zeros(2, dtype="i4,f4"), "a ndarray cannot"),
        (np.ma.masked_array([1, 2], [0, 1]), "a MaskedArray cannot"),
        ([1 << 20_000], "an integer of 20001 bits"),
    ],
)
def test_what_cannot_be_rebuilt_is_refused_with_its_path(value: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        pack(state={"a": value})


def test_a_state_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="deeper than"):
        pack(state={"a": endless})


def test_a_state_with_other_keys_is_not_filled() -> None:
    weights = torch.zeros(2)
    with pytest.raises(SnapshotError, match="differ in optimizer"):
        restored({"model": torch.ones(2), "optimizer": 1}, {"model": weights})
    assert torch.equal(weights, torch.zeros(2))


class Scaled(torch.Tensor):
    """Wraps a tensor and its scale, as the weights of float8 training do."""

    @staticmethod
    def __new__(cls: type[Self], inner: torch.Tensor) -> Self:
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, dtype=inner.dtype, device=inner.device
        )
        made.inner, made.scale = inner, torch.tensor(1.0)
        return made

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["inner", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        bare = [each.inner if isinstance(each, cls) else each for each in args]
        return func(*bare, **(kwargs or {}))


def test_a_tensor_that_wraps_its_numbers_is_filled_in_place() -> None:
    target = Scaled(torch.zeros(3))
    back = restored({"t": Scaled(torch.tensor([1.0, 2.0, 3.0]))}, {"t": target})["t"]
    assert back is target
    assert target.inner.tolist() == [1.0, 2.0, 3.0]


def test_a_dict_with_a_default_keeps_it() -> None:
    counts = defaultdict(int, a=1)
    back = restored({"counts": counts}, {"counts": defaultdict(int)})["counts"]
    assert back == {"a": 1}
    assert back["b"] == 0


def test_a_tensor_of_shared_elements_is_replaced() -> None:
    back = restored({"t": torch.arange(3.0)}, {"t": torch.zeros(1).expand(3)})["t"]
    assert back.tolist() == [0.0, 1.0, 2.0]
