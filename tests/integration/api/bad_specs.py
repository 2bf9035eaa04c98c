"""The table of bad specs, bad_specs.yaml, as objects."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.integration.api.manifests import Json, laid_over, manifest, template_job

_TABLE: dict[str, list[Json]] = yaml.safe_load(
    Path(__file__).with_name("bad_specs.yaml").read_text()
)


@dataclass(frozen=True, slots=True)
class Bad:
    """One bad object and what the refusal must say."""

    why: str
    body: dict[str, Any]
    field: str
    fix: str


def bad_specs(*kinds: str) -> list[Bad]:
    """Return the bad objects of these kinds; of all kinds where none is named."""
    return [_bad(kind, **case) for kind in kinds or _TABLE for case in _TABLE[kind]]


def _bad(
    kind: str,
    *,
    why: str,
    says: dict[str, str],
    template: Json | None = None,
    spec: Json | None = None,
    metadata: Json | None = None,
) -> Bad:
    base = template_job() if kind == "TemplateJob" else manifest(kind)
    changes = {
        "metadata": metadata or {},
        "spec": {"template": template} if template else spec or {},
    }
    ((field, fix),) = says.items()
    return Bad(why, laid_over(base, changes), field, fix)
