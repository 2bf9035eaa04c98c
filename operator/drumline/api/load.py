"""Decoded JSON -> model, for what the API server stored.

The server has validated every object, but by the schema of its day: one stored before an upgrade
may not be what today's models say. That is an error of the one object, with the field's path, and
never of the process that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from drumline.api.base import ApiModel

Model = TypeVar("Model", bound=ApiModel)


class ApiError(ValueError):
    """An object that is not what its model says.

    Attributes:
        path: the first field at fault, as `kubectl explain` spells it: `spec.trainer.steps`.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path


def parse(model: type[Model], raw: Mapping[str, Any], *, at: str = "") -> Model:
    """`raw` as a value of `model`; fields the model does not know are ignored.

    Args:
        model: What it should be.
        raw: Decoded JSON.
        at: Where `raw` is in its object, for the paths of errors: `spec`.

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
