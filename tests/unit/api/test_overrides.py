"""Overrides: bounded before anything decodes them."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_api.load import ApiError, parse
from drumline_api.overrides import MAX_BYTES, MAX_DEPTH, Overrides, OverridesError
from drumline_api.trainingjob import TrainerSpec


def trainer(overrides: Any) -> TrainerSpec:
    return parse(TrainerSpec, {"overrides": overrides}, at="spec.trainer")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("value", [{}, {"a": [1, "x]", None, {"é": '"'}]}, nested(MAX_DEPTH)])
def test_what_is_small_comes_back(value: Any) -> None:
    overrides = trainer(value).overrides
    assert overrides is not None
    assert overrides.decoded() == value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            b'{"a":"' + b"x" * MAX_BYTES + b'"}',
            rf"^{MAX_BYTES + 8} bytes as JSON is over {MAX_BYTES}$",
        ),
        (b'{"a":' * 17 + b"1" + b"}" * 17, r"^nested more than 16 levels deep$"),
        (b"[" * 8000, r"^nested more than 16 levels deep$"),
        (b'{"a":' + b"9" * 5000 + b"}", r"^not JSON: "),
        (b'{"a":', r"^not JSON: "),
        (b"[]", r"^must be an object$"),
    ],
)
def test_everything_else_is_refused_with_its_figures(text: bytes, said: str) -> None:
    with pytest.raises(OverridesError, match=said):
        Overrides.of_json(text).decoded()


@pytest.mark.parametrize("value", [[], "x", 7, {"a": {1, 2}}, nested(5000)])
def test_what_no_json_can_spell_is_an_error_of_the_field(value: Any) -> None:
    with pytest.raises(ApiError, match=r"^spec\.trainer\.overrides: "):
        trainer(value)
