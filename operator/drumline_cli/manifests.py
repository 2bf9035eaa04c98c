"""Objects from files, as `kubectl get -o yaml` or `-o json` prints them: one, several, or lists.

An error names the file, the line and the field, as the file's reader sees them. Lines are looked up
only for an error: reading YAML with its line numbers takes several times as long.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final, cast

import yaml

from drumline.kube.yaml_bounds import MANIFESTS, excess
from drumline_cli.errors import BadInput
from drumline_cli.yaml_scalars import KubectlLoader
from drumline_contract import plain

Json = Mapping[str, Any]
STANDARD_INPUT: Final = "-"
MOST_CHARS: Final = 256 * 2**20
"""Of a file of manifests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestDocument:
    """One object, and the file it was read from."""

    file: str
    raw: Json
    find: Callable[[], yaml.Node] | None
    """Composes the YAML node of the object, to find a line. None: the object is in no file."""
    as_of: float
    """When its file was written."""

    @property
    def kind(self) -> str:
        """Its kind, fit for a terminal."""
        return plain(str(self.raw.get("kind", "")))

    @property
    def group(self) -> str:
        """Its API group; empty for the core."""
        group, slash, _ = str(self.raw.get("apiVersion", "")).partition("/")
        return group if slash else ""

    @property
    def namespaced_name(self) -> tuple[str, str]:
        """Namespace and name, fit for a terminal."""
        metadata = self.raw.get("metadata")
        named: Json = cast("Json", metadata) if isinstance(metadata, dict) else {}
        return plain(str(named.get("namespace", "default"))), plain(str(named.get("name", "")))

    def blame(self, path: str, problem: str) -> BadInput:
        """Return the error that the field at `path` is wrong, with its file and line."""
        # An object from an argument has no file, so the error names no line.
        if self.find is None:
            return BadInput(f"{self.file}: {plain(problem)}")
        return BadInput(f"{_place(self.file, self.find, path)}: {plain(problem)}")


def read_manifests(names: Sequence[str]) -> list[ManifestDocument]:
    """Read all objects of these files. `-` is standard input.

    Raises:
        BadInput: a file is missing, or contains a document that is not a Kubernetes object.
    """
    manifests: list[ManifestDocument] = []
    for name in names:
        text, as_of = read_text(name)
        # An empty file usually means that an earlier command in a pipe failed.
        if not text.strip():
            raise BadInput(f"{display_name(name)}: the file is empty")
        manifests += manifests_in(text, file=display_name(name), as_of=as_of)
    return manifests


def line_of(node: yaml.Node, path: str) -> int:
    """Line of the field, or of what should hold it."""
    # Descend as far as the path exists. The last existing parent is the best line.
    while path and (step := _step(node, path)) is not None:
        node, path = step
    return node.start_mark.line + 1


def line_in(text: str, path: str) -> int:
    """Line of the field in the only document of a text; the first where it is not to be found."""
    if excess(text, MANIFESTS):
        return 1
    try:
        node = yaml.compose(text, Loader=KubectlLoader)
    except yaml.YAMLError:
        return 1
    return 1 if node is None else line_of(node, path)


def read_text(name: str, *, longest: int = MOST_CHARS) -> tuple[str, float]:
    """Return the text of a file and its write time in seconds since the epoch.

    Args:
        name: name of the file; `-` is standard input.
        longest: maximum number of characters.

    Raises:
        BadInput: the file cannot be read, or is longer than `longest`.
    """
    # One character more than the limit proves that the text is too long.
    most = longest + 1
    try:
        if name == STANDARD_INPUT:
            text, as_of = sys.stdin.read(most), time.time()
        else:
            with Path(name).open(encoding="utf-8") as file:
                text, as_of = file.read(most), Path(name).stat().st_mtime
    # Standard input can contain any bytes, so the encoding is checked here.
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}") from None
    if len(text) > longest:
        raise BadInput(f"{name}: longer than {longest} characters")
    return text, as_of


def display_name(name: str) -> str:
    """Return the name of a file for messages."""
    return "standard input" if name == STANDARD_INPUT else name


def manifests_in(text: str, *, file: str, as_of: float) -> Iterator[ManifestDocument]:
    """Yield all objects of a text.

    Args:
        text: YAML or JSON.
        file: name of the file in messages.
        as_of: time at which it was written, in seconds since the epoch.

    Raises:
        BadInput: a document is not a Kubernetes object.
    """
    for number, value in enumerate(_values(text, file=file)):
        # The position is computed only for an error. Composing the text takes long.
        find = partial(_node, text, number)
        # Documents may be empty, as after a trailing separator.
        if value is None:
            continue
        if not isinstance(value, dict):
            raise BadInput(f"{_place(file, find)}: an API object must be a mapping")
        raw = cast("Json", value)
        # `kubectl get` wraps several objects into one list.
        items: object = raw.get("items")
        if not isinstance(items, list):
            yield ManifestDocument(file=file, raw=raw, find=find, as_of=as_of)
            continue
        for index, item in enumerate(cast("list[Any]", items)):
            find = partial(_node, text, number, index)
            if not isinstance(item, dict):
                raise BadInput(f"{_place(file, find)}: items: each item must be an object")
            yield ManifestDocument(file=file, raw=cast("Json", item), find=find, as_of=as_of)


def _values(text: str, *, file: str) -> list[Any]:
    # JSON is valid YAML, but the JSON parser is much faster.
    if text.lstrip().startswith("{"):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            pass  # YAML's flow style looks alike, and its reader says what is wrong
        else:
            if _is_deeper(value, MANIFESTS.depth):
                raise BadInput(f"{file}: nested more than {MANIFESTS.depth} levels deep")
            return [value]
    if problem := excess(text, MANIFESTS):
        raise BadInput(f"{file}: {problem}")
    try:
        return list(yaml.load_all(text, Loader=KubectlLoader))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadInput(f"{file}{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{file}: not YAML: {plain(str(error))}") from None


def _is_deeper(value: Any, levels: int) -> bool:
    """Return whether a value has more than `levels` levels, without recursion."""
    level: list[Any] = [[value]]
    for _ in range(levels + 1):
        children = chain.from_iterable(
            cast("Json", each).values() if isinstance(each, dict) else each for each in level
        )
        level = [child for child in children if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


def _place(file: str, find: Callable[[], yaml.Node], path: str = "") -> str:
    """Return the file and the line of a field, for messages."""
    try:
        return f"{file}, line {line_of(find(), path)}"
    # JSON may have tabs, long keys and escapes that YAML has not.
    except yaml.YAMLError:
        return file


def _node(text: str, number: int, item: int | None = None) -> yaml.Node:
    # The same position in the document list as while reading.
    node = list(yaml.compose_all(text, Loader=KubectlLoader))[number]
    items = _child(node, "items")
    if item is None or not isinstance(items, yaml.SequenceNode):
        return node
    return items.value[item]


def _step(node: yaml.Node, path: str) -> tuple[yaml.Node, str] | None:
    # A path names list items by index: `nodes[0].name`.
    if path.startswith("["):
        number, _, rest = path[1:].partition("]")
        within = isinstance(node, yaml.SequenceNode) and number.isdecimal()
        if within and int(number) < len(node.value):
            return node.value[int(number)], rest.removeprefix(".")
        return None
    if not isinstance(node, yaml.MappingNode):
        return None
    keys = sorted((str(key.value) for key, _ in node.value), key=len, reverse=True)
    for key in keys:  # the longest first: a label's name may hold dots
        rest = path.removeprefix(key)
        if rest != path and (not rest or rest[0] in ".["):
            child = _child(node, key)
            return None if child is None else (child, rest.removeprefix("."))
    return None


def _child(node: yaml.Node, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
