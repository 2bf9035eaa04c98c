"""The config.json of a folder as Hugging Face lays it out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from drumline_trainer.config import merge
from drumline_trainer.shapes.hugging_face.kind import HuggingFaceError
from drumline_trainer.shapes.hugging_face.language_part import language_part
from drumline_trainer.shapes.hugging_face.translation import to_ours
from drumline_trainer.shapes.hugging_face.vision import has_no_classifier

CONFIG_FILE = "config.json"
_MAX_JSON_BYTES = 64 << 20


def read_config(folder: Path) -> dict[str, Any]:
    """Its config.json, or the one inside it of the language model. Raises HuggingFaceError."""
    return language_part(read_json(folder / CONFIG_FILE))


def with_model_of_folder(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A run's configuration with the model of the folder `model_from`, where it names no model.

    It names one where it says how wide the model is; then the folder is not asked.

    Raises:
        HuggingFaceError: config.json is missing, or describes what ours cannot be; or it is an
            encoder of images alone, and nothing says how many classes it is to name.
    """
    folder, model = raw.get("model_from"), raw.get("model", {})
    if not isinstance(folder, str) or not isinstance(model, dict) or "hidden_size" in model:
        return dict(raw)
    described = read_config(Path(folder))
    if has_no_classifier(described) and "classes" not in model:
        raise HuggingFaceError(
            f"model.classes: {folder} holds a ViT without a classifier; say how many classes the"
            " data has"
        )
    return merge({"model": asdict(to_ours(described))}, dict(raw))


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of bounded size. Raises HuggingFaceError."""
    try:
        with path.open("rb") as file:
            body = file.read(_MAX_JSON_BYTES + 1)
    except OSError as error:
        raise HuggingFaceError(f"{path}: {error.strerror}") from error
    if len(body) > _MAX_JSON_BYTES:
        raise HuggingFaceError(f"{path}: larger than {_MAX_JSON_BYTES} bytes")
    try:
        value = json.loads(body)
    except ValueError as error:
        raise HuggingFaceError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise HuggingFaceError(f"{path}: not a JSON object")
    return cast("dict[str, Any]", value)
