"""Jobs and events from files, as `kubectl get -o yaml` or `-o json` prints them.

An error names the file, the line and the field, as the file's reader sees them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

from drumline.api.base import GROUP
from drumline.api.load import ApiError
from drumline.api.trainingjob import TrainingJob
from drumline.cli.errors import BadInput
from drumline.cli.figures import plain
from drumline.cli.subject import Json, Subject, subject

STANDARD_INPUT: Final = "-"


class _Loader(yaml.CSafeLoader):
    """Times stay text: the API's are."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the base class declares it as it is
        first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
        for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    """One object, and where it stands."""

    file: str
    raw: Json
    node: yaml.Node
    as_of: float

    @property
    def kind(self) -> str:
        return plain(str(self.raw.get("kind", "")))

    @property
    def is_job(self) -> bool:
        group, _, _ = str(self.raw.get("apiVersion", "")).partition("/")
        return self.kind == TrainingJob.KIND and group == GROUP

    def blame(self, error: ApiError) -> BadInput:
        line = _line_of(self.node, error.path)
        return BadInput(f"{self.file}, line {line}: {plain(str(error))}")


def read(names: Sequence[str], *, job: str | None, namespace: str | None) -> Subject:
    """The one job that the files hold under this name, with the events about it.

    Args:
        names: Files; `-` is standard input.
        job: Its name; None where there is but one job.
        namespace: Its namespace; None takes any.

    Raises:
        BadInput: a file is missing or malformed, or not exactly one job fits.
    """
    documents = [document for name in names for document in _documents(name)]
    chosen = _only(documents, names=names, job=job, namespace=namespace)
    events = [document.raw for document in documents if document.kind == "Event"]
    try:
        return subject(chosen.raw, events=events, as_of=chosen.as_of)
    except ApiError as error:
        raise chosen.blame(error) from None


def _only(
    documents: list[_Document], *, names: Sequence[str], job: str | None, namespace: str | None
) -> _Document:
    where = ", ".join(names)
    jobs = {_place(document): document for document in documents if document.is_job}
    if not jobs:
        kinds = ", ".join(sorted({document.kind or "no kind" for document in documents}))
        raise BadInput(f"{where}: no TrainingJob of {GROUP} in it, but {kinds or 'nothing'}")
    fitting = [
        document
        for (its_namespace, its_name), document in jobs.items()
        if job in {None, its_name} and namespace in {None, its_namespace}
    ]
    if len(fitting) == 1:
        return fitting[0]
    held = ", ".join(f"{its_namespace}/{its_name}" for its_namespace, its_name in sorted(jobs))
    if fitting:
        raise BadInput(f"{where}: several jobs fit, name one of them: {held}")
    raise BadInput(f"{where}: no such job in it, but {held}")


def _place(document: _Document) -> tuple[str, str]:
    metadata = document.raw.get("metadata")
    named = cast("Json", metadata) if isinstance(metadata, dict) else {}
    return plain(str(named.get("namespace", "default"))), plain(str(named.get("name", "")))


def _documents(name: str) -> Iterator[_Document]:
    text, as_of = _contents(name)
    shown = "standard input" if name == STANDARD_INPUT else name
    try:
        nodes = list(yaml.compose_all(text, Loader=_Loader))
        values = list(yaml.load_all(text, Loader=_Loader))
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise BadInput(f"{shown}{line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise BadInput(f"{shown}: not YAML: {plain(str(error))}") from None
    for value, node in zip(values, nodes, strict=True):
        if value is None:
            continue
        if not isinstance(value, dict):
            line = node.start_mark.line + 1
            raise BadInput(f"{shown}, line {line}: an object of the API is a mapping")
        yield from _objects(cast("Json", value), node, file=shown, as_of=as_of)


def _objects(raw: Json, node: yaml.Node, *, file: str, as_of: float) -> Iterator[_Document]:
    items: object = raw.get("items")
    found = _child(node, "items")
    if not isinstance(items, list) or not isinstance(found, yaml.SequenceNode):
        yield _Document(file=file, raw=raw, node=node, as_of=as_of)
        return
    for item, item_node in zip(cast("list[Any]", items), found.value, strict=True):
        if not isinstance(item, dict):
            line = item_node.start_mark.line + 1
            raise BadInput(f"{file}, line {line}: items: each must be an object")
        yield _Document(file=file, raw=cast("Json", item), node=item_node, as_of=as_of)


def _contents(name: str) -> tuple[str, float]:
    """Text and when it was written: a report of a file is a report of that moment."""
    try:
        if name == STANDARD_INPUT:
            return sys.stdin.read(), time.time()
        file = Path(name)
        return file.read_text(encoding="utf-8"), file.stat().st_mtime
    except UnicodeDecodeError as error:
        raise BadInput(f"{name}: not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror}") from None


def _line_of(node: yaml.Node, path: str) -> int:
    """Line of the field, or of what should hold it."""
    while path and (found := _step(node, path)) is not None:
        node, path = found
    return node.start_mark.line + 1


def _step(node: yaml.Node, path: str) -> tuple[yaml.Node, str] | None:
    if path.startswith("["):
        number, _, rest = path[1:].partition("]")
        if isinstance(node, yaml.SequenceNode) and int(number) < len(node.value):
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
