"""The code that a job brings: its parts for the init container, its folder for the command."""

from __future__ import annotations

from typing import Any

from drumline.api.code import CodeSource
from drumline_trainer.contract import (
    CODE_FOLDER,
    CODE_PART_KEY,
    CODE_PARTS_FOLDER,
)

Json = dict[str, Any]

_FOLDER_VOLUME = "drumline-code"
_PARTS_VOLUME = "drumline-code-parts"


def code_volumes(code: CodeSource) -> list[Json]:
    """The parts as files `0`, `1`, ..., and scratch space for what they unpack to."""
    sources = [
        {"configMap": {"name": name, "items": [{"key": CODE_PART_KEY, "path": str(number)}]}}
        for number, name in enumerate(code.config_maps)
    ]
    return [
        {"name": _PARTS_VOLUME, "projected": {"sources": sources}},
        {"name": _FOLDER_VOLUME, "emptyDir": {}},
    ]


def code_mount() -> Json:
    """The folder with the code. Writable: programs keep caches and logs where they are started."""
    return {"name": _FOLDER_VOLUME, "mountPath": CODE_FOLDER}


def parts_mount() -> Json:
    """Where the init container reads the parts."""
    return {"name": _PARTS_VOLUME, "mountPath": CODE_PARTS_FOLDER, "readOnly": True}
