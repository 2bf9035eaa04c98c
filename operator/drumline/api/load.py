"""Decoded JSON -> model, for objects that the API server stored.

The server validated every object, but with the schema of that time: an object stored before an
upgrade may not match the current models. That is an error of this object, with the path of the
field, and never stops the process that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from drumline.api.base import ApiModel

Model = TypeVar("Model", bound=ApiModel)


class ApiError(ValueError):
    """An object that does not match its model.

    Attributes:
        path: the first invalid field, as `kubectl explain` spells it: `spec.trainer.steps`.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path


def parse(model: type[Model], raw: Mapping[str, Any], *, at: str = "") -> Model:
    """`raw` as a value of `model`; fields the model does not know are ignored.

    Args:
        model: the expected model.
        raw: decoded JSON.
        at: the path of `raw` in its object, for error messages: `spec`.

    Raises:
        ApiError: a field is missing, of the wrong type or out of its bounds.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ApiError(
            path=_path((*filter(None, [at]), *first["loc"])), problem=first["msg"]
        ) from None


def _path(location: tuple[int | str, ...]) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in location]
    return "".join(steps).removeprefix(".")
