"""Patterns that a template has for the lines of its command.

The agent reads them: `LinePattern`. No schema can say whether a text is one.
"""

from __future__ import annotations

from drumline.api.podtemplate import PodTemplate
from drumline_trainer.contract import PROGRESS_GROUPS, ContractError, LinePattern


def pattern_error(template: PodTemplate) -> str | None:
    """Why the agent could not use a template's patterns; names the field. None if it can."""
    patterns = (template.progress and template.progress.patterns) or []
    for index, text in enumerate(patterns):
        field = f"template.progress.patterns[{index}]"
        try:
            groups = LinePattern.parse(text).groups
        except ContractError as error:
            return f"{field}: {error}"
        unknown = [name for name in groups if name not in PROGRESS_GROUPS]
        if unknown or not groups:
            name = f"has a group {unknown[0]}" if unknown else "has no named group"
            return f"{field}: {text!r} {name}; its groups must be {', '.join(PROGRESS_GROUPS)}"
    return None
