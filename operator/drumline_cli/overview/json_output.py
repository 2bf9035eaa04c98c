"""Rows as JSON for programs, and the schema of it, from the rows' own classes.

`python -m drumline_cli.overview.json_output` writes docs/cli-output.schema.json.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from inspect import getdoc
from pathlib import Path
from typing import Any, Final

import msgspec

from drumline.overview.objects import ClusterObjects
from drumline.overview.rows import (
    BudgetDay,
    BudgetRow,
    ForeignPodRow,
    GanttBar,
    GanttRow,
    HolderRow,
    JobRow,
    LineRow,
    MoneyDay,
    MoneyOutlook,
    NodeRow,
    OverrideRow,
    OverviewRow,
    QueueRow,
    QuotaRow,
    SharePart,
    ShareRow,
    StayRow,
    UsageRow,
    UserBudgetRow,
    WhyCard,
    WorkloadCard,
    WorkloadRow,
)

FILE: Final = Path("docs/cli-output.schema.json")
# Keys are command names. The schema documents one object per kind.
KINDS: Final[Mapping[str, type[OverviewRow]]] = {
    "list": JobRow,
    "queue": QueueRow,
    "why": WhyCard,
    "why TYPE/NAME": WorkloadCard,
    "nodes": NodeRow,
    "share": ShareRow,
    "usage": UsageRow,
    "gantt": GanttRow,
    "history": JobRow,
}
"""Kind of the rows, by command."""
_DESCRIBED: Final = {
    kind.__name__: kind
    # Also nested classes, because their attributes are in the schema as well.
    for kind in (
        *KINDS.values(),
        StayRow,
        QuotaRow,
        WorkloadRow,
        OverrideRow,
        BudgetRow,
        BudgetDay,
        MoneyOutlook,
        MoneyDay,
        UserBudgetRow,
        HolderRow,
        ForeignPodRow,
        LineRow,
        SharePart,
        GanttBar,
    )
}
_ATTRIBUTE: Final = re.compile(r"^(\w+): (.*(?:\n    .*)*)", re.MULTILINE)


def as_json(command: str, rows: Sequence[OverviewRow], cluster: ClusterObjects) -> str:
    """Return the rows as one JSON object that ends with a newline.

    Args:
        command: name of the command.
        rows: rows to show.
        cluster: objects that were read, for remarks.
    """
    document = {
        "kind": KINDS[command].__name__,
        "asOf": cluster.as_of,
        "rows": rows,
        "remarks": cluster.remarks,
    }
    # Indented, so that people can read it and diffs stay small.
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the output of every command."""
    kinds = tuple(dict.fromkeys(KINDS.values()))
    references, definitions = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    # Descriptions come from docstrings, so they cannot differ from the code.
    for name, definition in definitions.items():
        _describe(definition, _DESCRIBED[name])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Output of drumline list, queue, why, nodes, share, usage, gantt and"
        " history with -o json",
        "oneOf": [
            {
                "type": "object",
                "description": _commands(kind),
                "properties": {
                    "kind": {"const": kind.__name__},
                    "asOf": {
                        "type": "number",
                        "description": "Time at which the cluster was read.",
                    },
                    "rows": {"type": "array", "items": reference},
                    "remarks": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "Sentences about objects that could not be read.",
                    },
                },
                "required": ["kind", "asOf", "rows", "remarks"],
            }
            for kind, reference in zip(kinds, references, strict=True)
        ],
        "$defs": definitions,
    }


def _commands(kind: type[OverviewRow]) -> str:
    return ", ".join(f"drumline {name} -o json" for name, its in KINDS.items() if its is kind)


def _describe(definition: dict[str, Any], kind: type[OverviewRow]) -> None:
    """Put the sentences below `Attributes:` to their fields."""
    definition["description"], sentences = attribute_sentences(kind)
    for field in msgspec.structs.fields(kind):
        place = definition["properties"][field.encode_name]
        place["description"] = sentences[field.name]
        place.pop("default", None)


def attribute_sentences(kind: type) -> tuple[str, dict[str, str]]:
    """Return a class's summary, and the text of each attribute below `Attributes:`."""
    summary, _, attributes = (getdoc(kind) or "").partition("\n\nAttributes:\n")
    shallow = re.sub("^    ", "", attributes, flags=re.MULTILINE)
    return summary, {
        name: " ".join(sentence.split()) for name, sentence in _ATTRIBUTE.findall(shallow)
    }


def text() -> str:
    """Return the file."""
    return json.dumps(schema(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
