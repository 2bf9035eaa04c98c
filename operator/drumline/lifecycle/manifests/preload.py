"""Whether a template's command can have standbys; no schema can say it of words in two lists."""

from __future__ import annotations

from drumline.api.podtemplate import PodTemplate
from drumline_trainer.contract import ContractError, PythonProgram


def preload_error(template: PodTemplate) -> str | None:
    """Why the agent could not preload for a template's command; None if it can, or need not."""
    if not template.preload:
        return None
    if template.launch in {None, "Direct"}:
        return "template.preload: it needs launch: PerGpu or launch: PerPod; add launch"
    try:
        PythonProgram.parse([*(template.command or []), *(template.args or [])])
    except ContractError as error:
        return f"template.{error}"
    return None
