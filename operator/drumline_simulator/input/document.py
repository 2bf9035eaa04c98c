"""Parse YAML with line numbers for error messages.

Each field is read by a method for its type, and `Section.reject_unknown` rejects the fields that
were not read. Values are not converted: a quoted number is not a number.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

import yaml

from drumline.kube.yaml_bounds import MANIFESTS, excess
from drumline_simulator.input.errors import InvalidFileError

Choice = TypeVar("Choice", bound=StrEnum)
# YAML 1.1 resolves `1e3` to text and `1.0e+3` to a number. The tag tells both apart.
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


class Section:
    """A mapping of the document with its path and line.

    Its methods raise InvalidFileError, with line and field, for a value of another type or a
    missing required field.

    Args:
        node: the mapping.
        file: name of the file, for errors.
        path: path of the mapping in the document.
    """

    def __init__(self, *, node: yaml.MappingNode, file: str, path: str) -> None:
        self._file = file
        self._path = path
        self._line = node.start_mark.line + 1
        self._fields: dict[str, yaml.Node] = {}
        # The parser accepts a repeated key and keeps the last one, which hides a typo.
        for key, value in node.value:
            name = str(key.value)
            if name in self._fields:
                raise self._error(name, "is given twice", at=key)
            self._fields[name] = value
        self._read: set[str] = set()

    def has(self, name: str) -> bool:
        """Return whether a field exists."""
        # Asking for a field makes it known, even if it is absent: the error message lists it.
        self._read.add(name)
        return name in self._fields

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string. Without a default it is required."""
        node = self._take(name, needed=default is None)
        if node is None:
            return default or ""
        # An empty scalar is null in YAML, so it is not a text.
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self._error(name, "must be text", at=node)
        return str(node.value)

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        """Return a number.

        Args:
            name: name of the field.
            default: value of a missing field. None: the field is required.
            least: smallest valid value.
        """
        node = self._take(name, needed=default is None)
        if node is None:
            return default or 0.0
        return self._number(name, node, least=least)

    def integer(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number.

        Args:
            name: name of the field.
            default: value of a missing field. None: the field is required.
            least: smallest valid value.
        """
        node = self._take(name, needed=default is None)
        if node is None:
            return default or 0
        return self._integer(name, node, least=least)

    def flag(self, name: str, default: bool) -> bool:  # noqa: FBT001 - a default like the others
        """Return true or false."""
        node = self._take(name, needed=False)
        if node is None:
            return default
        # The tag decides: a quoted "true" is a text.
        if node.tag != "tag:yaml.org,2002:bool":
            raise self._error(name, "must be true or false", at=node)
        return str(node.value).lower() in {"true", "yes", "on"}

    def choice(self, name: str, default: Choice) -> Choice:
        """Return a value of an enumeration."""
        node = self._take(name, needed=False)
        if node is None:
            return default
        kind = type(default)
        try:
            return kind(str(node.value))
        except ValueError:
            words = ", ".join(kind)
            raise self._error(name, f"must be one of {words}", at=node) from None

    def counts(self, name: str) -> dict[str, int] | None:
        """Return a mapping of names to integers, or None if it is missing."""
        node = self._take(name, needed=False)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            raise self._error(name, "must be numbers by name", at=node)
        return {
            str(key.value): self._integer(f"{name}.{key.value}", value, least=0)
            for key, value in node.value
        }

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of strings, which is empty if it is missing."""
        node = self._take(name, needed=False)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(name, "must be a list of text values", at=node)
        return tuple(str(item.value) for item in node.value)

    def section(self, name: str) -> Section | None:
        """Return a nested mapping, or None if it is missing."""
        node = self._take(name, needed=False)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            raise self._error(name, "must be a mapping", at=node)
        return Section(node=node, file=self._file, path=self._path_of(name))

    def sections(self, name: str, *, needed: bool = True) -> Iterator[Section]:
        """Return a list of nested mappings."""
        node = self._take(name, needed=needed)
        if node is None:
            return
        # A required list must not be empty, because a cluster without nodes runs nothing.
        if not isinstance(node, yaml.SequenceNode) or (needed and not node.value):
            raise self._error(name, "must be a list of mappings", at=node)
        for number, item in enumerate(node.value):
            if not isinstance(item, yaml.MappingNode):
                raise self._error(f"{name}[{number}]", "must be a mapping", at=item)
            yield Section(node=item, file=self._file, path=f"{self._path_of(name)}[{number}]")

    def error(self, name: str, why: str) -> InvalidFileError:
        """Return the error to raise for an invalid field."""
        return self._error(name, why, at=self._fields.get(name))

    def reject_unknown(self) -> None:
        """Reject fields that were not read.

        Raises:
            InvalidFileError: a field is unknown. The error names the first one.
        """
        for name, node in self._fields.items():
            if name not in self._read:
                # The message lists the known fields, which a typo is compared with.
                known = ", ".join(sorted(self._read))
                raise self._error(name, f"unknown field; the fields are: {known}", at=node)

    def _take(self, name: str, *, needed: bool) -> yaml.Node | None:
        self._read.add(name)
        node = self._fields.get(name)
        if node is None and needed:
            raise self._error(name, "is missing", at=None)
        return node

    def _number(self, name: str, node: yaml.Node, *, least: float) -> float:
        if node.tag not in _NUMBERS:
            raise self._error(name, f"must be a number, got {node.value!r}", at=node)
        # YAML 1.1 allows underscores anywhere in a number, Python only between digits.
        try:
            value = float(str(node.value).replace("_", ""))
        except ValueError:  # YAML has numbers that are none here, such as `.inf` and `0x10`
            raise self._error(
                name, f"must be a decimal number, got {node.value}", at=node
            ) from None
        if not least <= value < float("inf"):
            raise self._error(name, f"must be at least {least:g}, got {node.value}", at=node)
        return value

    def _integer(self, name: str, node: yaml.Node, *, least: int) -> int:
        value = self._number(name, node, least=least)
        if not value.is_integer():
            raise self._error(name, f"must be a whole number, got {node.value}", at=node)
        return int(value)

    def _error(self, name: str, why: str, *, at: yaml.Node | None) -> InvalidFileError:
        line = self._line if at is None else at.start_mark.line + 1
        return InvalidFileError(file=self._file, line=line, field=self._path_of(name), reason=why)

    def _path_of(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def parse_document(text: str, *, file: str) -> Section:
    """Return the mapping of a YAML file.

    Raises:
        InvalidFileError: the text is not YAML, or not one mapping.
    """
    if problem := excess(text, MANIFESTS):
        raise InvalidFileError(file=file, line=1, field="", reason=problem)
    try:
        # `compose` builds nodes without values, so no tag can create a Python object.
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        why = f"no YAML: {error.problem or error.context}"
        raise InvalidFileError(file=file, line=line, field="", reason=why) from None
    if not isinstance(node, yaml.MappingNode):
        raise InvalidFileError(file=file, line=1, field="", reason="must be one mapping")
    return Section(node=node, file=file, path="")
