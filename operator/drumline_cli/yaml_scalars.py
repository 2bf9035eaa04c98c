"""A YAML loader that takes plain text for what kubectl takes it for.

`1e-05` is a number to kubectl and text to PyYAML, and kubectl prints small numbers in that form.
`1:30` is the other way round: a number to PyYAML alone. Keys of mappings are always text.
"""

from __future__ import annotations

import math
import re
from typing import Any, Final

import yaml

_TAG: Final = "tag:yaml.org,2002:"
_NUMBERS: Final = frozenset(f"{_TAG}{name}" for name in ("float", "int"))
_CONVERTED: Final = _NUMBERS | {f"{_TAG}bool"}
"""Tags of keys that become text."""
_DROPPED: Final = frozenset(f"{_TAG}{name}" for name in ("timestamp", "value"))
_NUMBER: Final = re.compile(
    r"[-+]?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+"
    r"|(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9_]+)?"
    r"|\.(?:inf|Inf|INF))$|\.(?:nan|NaN|NAN)$"
)
_DECIMAL: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_OCTAL: Final = re.compile(r"^([-+]?0)([0-7]+)$")
_MOST_WHOLE: Final = 2**64
_LEAST_FLOAT: Final = 2.0**63
"""The API server reads a float below this as an integer."""


# The C loader is several times faster. A cluster's objects may have megabytes.
class KubectlLoader(yaml.CSafeLoader):
    """Loads what `kubectl apply` would send: JSON values, with text as keys."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it as it is
        first: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBERS | _DROPPED]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        """Return a mapping whose keys are text, as in JSON."""
        # `1` and `true` are one key to Python, so the nodes are changed.
        for at, (key, value) in enumerate(node.value):
            if key.tag in _CONVERTED:
                read: object = self.construct_object(key)  # pyright: ignore[reportUnknownMemberType] - as below
                node.value[at] = (_text_of(read, key), value)
        return super().construct_mapping(node, deep=deep)


def _text_of(key: object, node: yaml.ScalarNode) -> yaml.ScalarNode:
    text = str(key).lower() if isinstance(key, bool) else str(key)
    return yaml.ScalarNode(f"{_TAG}str", text, node.start_mark, node.end_mark)


def _number(_: yaml.CSafeLoader, node: yaml.ScalarNode) -> int | float | str:
    """Return the number, or the text of a number that kubectl does not read as one."""
    written = str(node.value)
    # A leading zero alone means octal to kubectl, which Python spells 0o.
    text = _OCTAL.sub(r"\1o\2", written.replace("_", ""))
    try:
        whole = int(text, 0)
    except ValueError:
        pass  # a float, or text
    else:
        if abs(whole) < _MOST_WHOLE:
            return whole
    if _DECIMAL.fullmatch(text) is None:
        if text.lower().endswith(("inf", "nan")):
            raise yaml.constructor.ConstructorError(
                None, None, f"JSON has no number {written}", node.start_mark
            )
        return written
    value = float(text)
    if math.isinf(value):
        return written
    return int(value) if value.is_integer() and abs(value) < _LEAST_FLOAT else value


KubectlLoader.add_implicit_resolver(f"{_TAG}float", _NUMBER, list("-+.0123456789"))  # pyright: ignore[reportUnknownMemberType] - PyYAML has no types
KubectlLoader.add_constructor(f"{_TAG}float", _number)
KubectlLoader.add_constructor(f"{_TAG}int", _number)
