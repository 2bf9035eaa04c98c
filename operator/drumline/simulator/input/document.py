"""A YAML document that remembers its lines, so that what is wrong can be pointed at.

Reading is by field: whoever asks says what a field must be, and `Section.done` refuses what nobody
asked for. Nothing is guessed: a number in quotes is no number.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeVar

import yaml

from drumline.simulator.input.errors import BadFile

Choice = TypeVar("Choice", bound=StrEnum)
_NUMBERS = {"tag:yaml.org,2002:int", "tag:yaml.org,2002:float"}


class Section:
    """A mapping of the document and where it stands."""

    def __init__(self, *, node: yaml.MappingNode, file: str, path: str) -> None:
        self._file = file
        self._path = path
        self._line = node.start_mark.line + 1
        self._fields: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(key.value)
            if name in self._fields:
                raise self._refused(name, "is there twice", at=key)
            self._fields[name] = value
        self._asked: set[str] = set()

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without a default it has to be there."""
        node = self._take(name, needed=default is None)
        if node is None:
            return default or ""
        if not isinstance(node, yaml.ScalarNode) or not node.value:
            raise self._refused(name, "must be a text", at=node)
        return str(node.value)

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        """A number."""
        node = self._take(name, needed=default is None)
        if node is None:
            return default or 0.0
        return self._number(name, node, least=least)

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """A whole number."""
        node = self._take(name, needed=default is None)
        if node is None:
            return default or 0
        return self._whole(name, node, least=least)

    def flag(self, name: str, default: bool) -> bool:  # noqa: FBT001 - a default like the others
        """True or false."""
        node = self._take(name, needed=False)
        if node is None:
            return default
        if node.tag != "tag:yaml.org,2002:bool":
            raise self._refused(name, "must be true or false", at=node)
        return str(node.value).lower() in {"true", "yes", "on"}

    def choice(self, name: str, default: Choice) -> Choice:
        """One word of a closed list."""
        node = self._take(name, needed=False)
        if node is None:
            return default
        kind = type(default)
        try:
            return kind(str(node.value))
        except ValueError:
            words = ", ".join(kind)
            raise self._refused(name, f"must be one of {words}", at=node) from None

    def counts(self, name: str) -> dict[str, int] | None:
        """Whole numbers by name; None if it is not there."""
        node = self._take(name, needed=False)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            raise self._refused(name, "must be numbers by name", at=node)
        return {
            str(key.value): self._whole(f"{name}.{key.value}", value, least=0)
            for key, value in node.value
        }

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of texts; empty if it is not there."""
        node = self._take(name, needed=False)
        if node is None:
            return ()
        if not isinstance(node, yaml.SequenceNode):
            raise self._refused(name, "must be a list of texts", at=node)
        return tuple(str(one.value) for one in node.value)

    def section(self, name: str) -> Section | None:
        """A mapping inside this one."""
        node = self._take(name, needed=False)
        if node is None:
            return None
        if not isinstance(node, yaml.MappingNode):
            raise self._refused(name, "must be a mapping", at=node)
        return Section(node=node, file=self._file, path=self._named(name))

    def sections(self, name: str, *, needed: bool = True) -> Iterator[Section]:
        """A list of mappings inside this one."""
        node = self._take(name, needed=needed)
        if node is None:
            return
        if not isinstance(node, yaml.SequenceNode) or (needed and not node.value):
            raise self._refused(name, "must be a list of mappings", at=node)
        for number, one in enumerate(node.value):
            if not isinstance(one, yaml.MappingNode):
                raise self._refused(f"{name}[{number}]", "must be a mapping", at=one)
            yield Section(node=one, file=self._file, path=f"{self._named(name)}[{number}]")

    def refused(self, name: str, why: str) -> BadFile:
        """What to raise about a field whose meaning is wrong."""
        return self._refused(name, why, at=self._fields.get(name))

    def done(self) -> None:
        """Refuse fields that nobody asked for.

        Raises:
            BadFile: at the first of them.
        """
        for name, node in self._fields.items():
            if name not in self._asked:
                known = ", ".join(sorted(self._asked))
                raise self._refused(name, f"no such field; there are: {known}", at=node)

    def _take(self, name: str, *, needed: bool) -> yaml.Node | None:
        self._asked.add(name)
        node = self._fields.get(name)
        if node is None and needed:
            raise self._refused(name, "is missing", at=None)
        return node

    def _number(self, name: str, node: yaml.Node, *, least: float) -> float:
        if node.tag not in _NUMBERS:
            raise self._refused(name, f"must be a number, not {node.value!r}", at=node)
        value = float(str(node.value).replace("_", ""))
        if not least <= value < float("inf"):
            raise self._refused(name, f"must be at least {least:g}, not {node.value}", at=node)
        return value

    def _whole(self, name: str, node: yaml.Node, *, least: int) -> int:
        value = self._number(name, node, least=least)
        if not value.is_integer():
            raise self._refused(name, f"must be a whole number, not {node.value}", at=node)
        return int(value)

    def _refused(self, name: str, why: str, *, at: yaml.Node | None) -> BadFile:
        line = self._line if at is None else at.start_mark.line + 1
        return BadFile(file=self._file, line=line, field=self._named(name), why=why)

    def _named(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name


def document(text: str, *, file: str) -> Section:
    """The one mapping that a YAML file holds.

    Raises:
        BadFile: where it is no YAML, or something else than one mapping.
    """
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = None if mark is None else mark.line + 1
        why = f"no YAML: {error.problem or error.context}"
        raise BadFile(file=file, line=line, field="", why=why) from None
    if not isinstance(node, yaml.MappingNode):
        raise BadFile(file=file, line=1, field="", why="must be one mapping")
    return Section(node=node, file=file, path="")
