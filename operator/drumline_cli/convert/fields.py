"""An object of the input that records which of its fields were read.

No field is dropped silently: fields that no converter has read are reported at the end.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from drumline_cli.convert.model import ConversionError, Notes

NO_COUNTERPART: Final = "TrainingJobs have no such field"
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")


class Fields:
    """A mapping of the input at a path. Notes show `to`, the destination of a value.

    Args:
        raw: the mapping.
        notes: collects what was carried over or left out.
        path: path of the mapping in its object.
    """

    __slots__ = ("_below", "_lists", "_raw", "_read", "notes", "path")

    def __init__(self, raw: Mapping[str, Any], *, notes: Notes, path: str = "") -> None:
        self.path = path
        self.notes = notes
        self._raw = raw
        # Names that a converter has asked for. All others are reported at the end.
        self._read: set[str] = set()
        self._below: dict[str, Fields] = {}
        self._lists: dict[str, list[Fields]] = {}

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        """Return whether the field has content."""
        return not _is_empty(self._raw.get(name))

    def is_given(self, name: str) -> bool:
        """Return whether the field exists, even without content: `emptyDir: {}`."""
        return self._raw.get(name) is not None

    def raw(self, name: str, *, to: str | None = None) -> Any:
        """Return the value as it is, or None if it says nothing."""
        # Asking marks a field as read even if it is empty.
        self._read.add(name)
        if not self.has(name):
            return None
        if to is not None:
            self.notes.carried(self.at(name), to)
        return self._raw[name]

    def text(self, name: str, *, to: str | None = None) -> str | None:
        """Return a text, or a number as text.

        Raises:
            ConversionError: it is something else.
        """
        value = self.raw(name, to=to)
        if value is None:
            return None
        # A bool is an int in Python, and YAML reads `yes` as a bool.
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConversionError(path=self.at(name), problem="must be text")
        return str(value)

    def number(self, name: str, *, to: str | None = None) -> int | None:
        """Return a whole number.

        Raises:
            ConversionError: it is something else.
        """
        text = self.text(name, to=to)
        if text is None:
            return None
        # 18 digits fit into 64 bits.
        if _NUMBER.fullmatch(text) is None:
            raise ConversionError(path=self.at(name), problem="must be a whole number")
        return int(text)

    def flag(self, name: str, *, to: str | None = None) -> bool:
        """Return whether the field is true.

        Raises:
            ConversionError: it is neither true nor false.
        """
        value = self.raw(name)
        if value is not None and not isinstance(value, bool):
            raise ConversionError(path=self.at(name), problem="must be true or false")
        if value and to is not None:
            self.notes.carried(self.at(name), to)
        return bool(value)

    def texts(self, name: str, *, to: str | None = None) -> list[str]:
        """Return a list of texts, or empty if it is absent.

        Raises:
            ConversionError: it is something else.
        """
        value = self.raw(name, to=to)
        if value is None:
            return []
        if not isinstance(value, list) or any(
            isinstance(text, dict | list) for text in cast("list[Any]", value)
        ):
            raise ConversionError(path=self.at(name), problem="must be a list of texts")
        return [str(text) for text in cast("list[Any]", value)]

    def below(self, name: str) -> Fields:
        """Return an object, or empty if it is absent.

        Raises:
            ConversionError: it is something else.
        """
        # Children are cached, so that reading twice shares the record of read fields.
        if name not in self._below:
            value = self.raw(name)
            self._below[name] = self._child({} if value is None else value, self.at(name))
        return self._below[name]

    def each(self, name: str) -> list[Fields]:
        """Return a list of objects, or empty if it is absent.

        Raises:
            ConversionError: it is something else.
        """
        if name in self._lists:
            return self._lists[name]
        # An absent list and an empty list mean the same.
        value: object = self.raw(name) or []
        if not isinstance(value, list):
            raise ConversionError(path=self.at(name), problem="must be a list")
        self._lists[name] = [
            self._child(entry, f"{self.at(name)}[{number}]")
            for number, entry in enumerate(cast("list[Any]", value))
        ]
        return self._lists[name]

    def names(self, *, empty: bool = False, unread: bool = False) -> list[str]:
        """Return the names of the fields here.

        Args:
            empty: whether to include fields without a value.
            unread: whether to leave out fields that a converter has read.
        """
        return [
            name
            for name in self._raw
            if (empty or self.has(name)) and not (unread and name in self._read)
        ]

    def forget(self) -> None:
        """Take everything here as read: it was noted as a whole."""
        self._read.update(self._raw)
        # Children would report their own fields, although the parent was noted.
        self._below.clear()
        self._lists.clear()

    def leave_out(self, name: str, why: str) -> None:
        """Note the field as left out, if it says something."""
        if self.raw(name) is not None:
            self.notes.left_out(self.at(name), why)

    def leave_out_rest(self, why: str = NO_COUNTERPART) -> None:
        """Note every field here and below that nobody has read."""
        for path in self.unread():
            self.notes.left_out(path, why)

    def unread(self) -> Iterator[str]:
        """Yield the paths of the fields that no converter has read."""
        yield from map(self.at, self.names(unread=True))
        # Unread fields of children follow those of the parent.
        for child in (*self._below.values(), *itertools.chain(*self._lists.values())):
            yield from child.unread()

    def _child(self, value: object, path: str) -> Fields:
        if not isinstance(value, dict):
            raise ConversionError(path=path, problem="must be an object")
        # YAML has keys that are numbers, as in a label `1: a`; the API's are text.
        named = {str(name): entry for name, entry in cast("dict[object, Any]", value).items()}
        return Fields(named, notes=self.notes, path=path)


def _is_empty(value: object) -> bool:
    return value is None or value in ("", {}, [])
