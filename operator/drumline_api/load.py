"""Convert decoded JSON to models, for objects that the API server stored.

The server validated every object with the schema of that time. An object stored before an upgrade
may not match the current models. This is an error of that object, with the path of the field, and
never stops the process that reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from drumline_api.base import ApiModel

Model = TypeVar("Model", bound=ApiModel)


class ApiError(ValueError):
    """An object that does not match its model.

    Attributes:
        path: first invalid field, in the notation of `kubectl explain`: `spec.trainer.steps`.
    """

    def __init__(self, *, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path


MAX_ROUNDS = 4
"""Maximum number of rounds. Removing fields can invalidate others. After this many rounds only
defaults remain."""


def parse(model: type[Model], raw: Mapping[str, Any], *, at: str = "") -> Model:
    """Return `raw` as a value of `model`. Unknown fields are ignored.

    Args:
        model: expected model.
        raw: decoded JSON.
        at: path of `raw` in its object, for error messages: `spec`.

    Raises:
        ApiError: a field is missing, has the wrong type or is out of bounds.
    """
    try:
        # Pydantic validates all fields in one pass, so the first error is the first field.
        return model.model_validate(raw)
    except ValidationError as error:
        raise _first(error, at=at) from None


def parse_readable(
    model: type[Model],
    raw: Mapping[str, Any],
    *,
    at: str = "",
    instead: Mapping[str, Any] | None = None,
) -> tuple[Model, ApiError | None]:
    """Return the readable part of `raw`, and the first error. Unreadable fields get defaults.

        {"queue": "q", "user": 7, "nodes": 2} -> (a spec without user, spec.user: ...)

    Args:
        model: expected model.
        raw: decoded JSON.
        at: path of `raw` in its object, for error messages: `spec`.
        instead: values for required fields that cannot be read.
    """
    # Values for required fields win over nothing, and lose to readable values.
    known, readable, problem = dict(instead or {}), raw, None
    for _ in range(MAX_ROUNDS):
        try:
            return model.model_validate(readable), problem
        except ValidationError as error:
            problem = problem or _first(error, at=at)
            # Each round removes all wrong fields that pydantic reports at once.
            for wrong in error.errors(include_url=False, include_context=False):
                readable = {**known, **(_without(readable, wrong["loc"]) or {})}
    return model.model_validate(known), problem


def _first(error: ValidationError, *, at: str) -> ApiError:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return ApiError(path=_path((*filter(None, [at]), *first["loc"])), problem=first["msg"])


def _without(raw: object, location: tuple[int | str, ...]) -> dict[str, Any] | None:
    """Return a copy of `raw` without this location, or None if all of `raw` must be removed.

    A list is removed as a whole, and so is an object that lacks a required field.
    """
    if not location or not isinstance(raw, Mapping):
        return None
    fields, step = cast("Mapping[str, Any]", raw), str(location[0])
    if step not in fields:
        return None
    rest = {name: value for name, value in fields.items() if name != step}
    # A wrong element removes its whole list: half of a list has another meaning.
    below = _without(fields[step], location[1:])
    return rest if below is None else {**rest, step: below}


def _path(location: tuple[int | str, ...]) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in location]
    return "".join(steps).removeprefix(".")
