"""Manifests that a command prints, as YAML that every reader takes for the same."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import yaml

_PLAIN_TEXT: Final = re.compile(r"(?!(?i:y|n|yes|no|on|off|true|false|null)$)[A-Za-z/][\w./:@+=-]*")


def job_yaml(manifests: Iterable[dict[str, Any]]) -> str:
    """Return these manifests, a document each, for `kubectl apply -f -`."""
    return yaml.dump_all(manifests, Dumper=_QuotingDumper, sort_keys=False, explicit_start=True)


class _QuotingDumper(yaml.SafeDumper):
    """Quotes all text that some reader of YAML takes for something else.

    PyYAML leaves `3e-4` plain, as it is no number of YAML 1.1; to kubectl it is one.
    """

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        """Return True, because Kubernetes users do not expect anchors."""
        return True


def _text(_: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None if _PLAIN_TEXT.fullmatch(text) else '"'
    return yaml.ScalarNode("tag:yaml.org,2002:str", text, style=style)


_QuotingDumper.add_representer(str, _text)
