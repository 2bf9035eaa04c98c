"""Evaluate the CEL rules of our CRDs with the functions that Kubernetes adds to the language.

cel is imported for an object with rules alone: it takes longer than a short command.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from drumline.kube.quantity import thousandths
from drumline_api.schema import Schema


def broken_rule(rule: Schema, value: Any) -> str | None:
    """Return the message of a rule that a value breaks; None if it holds.

    A rule that compares with the stored object does not apply to a new one.

    Args:
        rule: an entry of x-kubernetes-validations.
        value: `self` of the rule.
    """
    if "oldSelf" in rule["rule"]:
        return None
    if _evaluated(rule["rule"], value) is True:
        return None
    expression = rule.get("messageExpression")
    return str(_evaluated(expression, value)) if expression else str(rule["message"])


def _evaluated(expression: str, value: Any) -> object:
    import cel  # noqa: PLC0415 - see above

    context = cel.Context()
    context.add_function("quantity", _quantity)
    context.add_function("isGreaterThan", _greater)
    context.add_function("isLessThan", _less)
    context.add_function("split", _split)
    context.add_function("format", _formatted)
    context.add_variable("self", value)
    return _compiled(expression).execute(context)


@cache
def _compiled(expression: str) -> Any:
    import cel  # noqa: PLC0415 - see above

    return cel.compile(expression)


def _quantity(value: Any) -> float:
    return thousandths(str(value)) / 1000


def _greater(left: float, right: float) -> bool:
    return left > right


def _less(left: float, right: float) -> bool:
    return left < right


def _split(text: str, separator: str) -> list[str]:
    return text.split(separator)


def _formatted(text: str, values: list[Any]) -> str:
    return text % tuple(values)
