"""Bounds of YAML texts, checked before values are made of them.

Loaders recurse: libyaml's ends the process with a segmentation fault at some 20,000 levels, and the
readers of its values end at Python's recursion limit. A few hundred bytes of aliases can stand for
billions of values. libyaml's parser of events is iterative, and takes a tenth of the loader's time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlBounds:
    """Bounds of one text.

    Attributes:
        depth: most levels, with every alias written out.
        values: most values of the text itself; None: the size of the text is bound enough.
        unfolded: most values that aliases add.
    """

    depth: int
    values: int | None = None
    unfolded: int


# Schemas in CustomResourceDefinitions have some 50 levels. Python gives up at about 300.
MANIFESTS: Final = YamlBounds(depth=128, unfolded=1_000_000)
"""Bounds of files with objects of Kubernetes."""


@dataclass(slots=True)
class _Node:
    """An open collection, or the size of a complete value. A scalar is one value of no level."""

    anchor: str | None = None
    values: int = 1
    levels: int = 0


def excess(text: str, bounds: YamlBounds) -> str | None:
    """Return in which way a text exceeds the bounds; None if it does not.

    A text that is not YAML exceeds nothing: the loader says what is wrong with it, and where.
    """
    try:
        return _excess(yaml.parse(text, Loader=yaml.CSafeLoader), bounds)
    except (yaml.YAMLError, ValueError):
        return None


class _Sizes:
    """Sizes of the collections that are open, and of the values that have an anchor."""

    def __init__(self) -> None:
        self.values = 0
        self.unfolded = 0
        self.levels = 0
        """Levels of the last complete value, or of what is open."""
        self._open: list[_Node] = []
        self._anchored: dict[str, _Node] = {}

    def take(self, event: yaml.Event) -> None:
        """Count an event.

        Raises:
            _EndlessError: an alias within its own anchor.
        """
        match event:
            case yaml.DocumentStartEvent():
                self._anchored.clear()
            case yaml.CollectionStartEvent():
                self._open.append(_Node(anchor=event.anchor, levels=1))
                # A hostile text closes nothing.
                self.levels = len(self._open)
            case yaml.CollectionEndEvent():
                self._complete(self._open.pop())
            case yaml.ScalarEvent():
                self._complete(_Node(anchor=event.anchor))
            case yaml.AliasEvent():
                if any(each.anchor == event.anchor for each in self._open):
                    raise _EndlessError
                # The loader refuses an alias without an anchor.
                node = self._anchored.get(event.anchor or "", _Node())
                self.unfolded += node.values
                self._complete(node)
            case _:
                pass

    def _complete(self, node: _Node) -> None:
        if node.anchor is not None:
            self._anchored[node.anchor] = node
        self.values += 1
        self.levels = node.levels
        if self._open:
            above = self._open[-1]
            above.values += node.values
            above.levels = max(above.levels, node.levels + 1)


class _EndlessError(Exception):
    """An alias contains itself."""


def _excess(events: Iterable[yaml.Event], bounds: YamlBounds) -> str | None:
    sizes = _Sizes()
    for event in events:
        try:
            sizes.take(event)
        except _EndlessError:
            return "an alias contains itself"
        if sizes.levels > bounds.depth:
            return f"nested more than {bounds.depth} levels deep"
        if sizes.unfolded > bounds.unfolded:
            return f"its aliases unfold to more than {bounds.unfolded} values"
        if bounds.values is not None and sizes.values > bounds.values:
            return f"more than {bounds.values} values"
    return None
