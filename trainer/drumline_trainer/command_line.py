"""Common parts of the commands of `python -m drumline_trainer`. No torch."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any, Final, cast

from drumline_contract.config import MODEL_PRESETS, ConfigError, TrainerConfig, merge
from drumline_contract.json_fields import ContractError, keys_once
from drumline_contract.regular_files import read_regular
from drumline_contract.shapes.hugging_face import with_model_of_folder

_MAX_CONFIG_BYTES: Final = 16 << 20


def configured(
    file: Path | None,
    *,
    preset: str | None,
    settings: list[str],
    under: dict[str, Any] | None = None,
) -> TrainerConfig:
    """Merge the configuration: the file, the preset's model over it, the settings over both.

    Without a model in any of them, it is that of the folder `model_from`.

    Args:
        file: JSON of a TrainerConfig.
        preset: name of a model.
        settings: `KEY=VALUE` each.
        under: defaults of the other three.

    Raises:
        ConfigError: unreadable file, malformed setting, or a configuration that is not valid.
    """
    # Each layer overrides the one before: defaults, file, preset, settings.
    raw: dict[str, Any] = under or {}
    if file is not None:
        try:
            read = json.loads(
                read_regular(file, limit=_MAX_CONFIG_BYTES), object_pairs_hook=keys_once
            )
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"{file}: {error}") from error
        if not isinstance(read, dict):
            # A list or a number is valid JSON and not a configuration.
            raise ConfigError(f"{file}: must be a JSON object")
        raw = merge(raw, cast("dict[str, Any]", read))
    if preset is not None:
        # Only the model of a preset is taken. Other fields of the file stay.
        model = TrainerConfig(model=MODEL_PRESETS[preset]).to_dict()["model"]
        raw = merge(raw, {"model": model})
    for setting in settings:
        raw = merge(raw, _setting(setting))
    # The folder's model is filled in last, when it is known whether anything names a model.
    return TrainerConfig.from_dict(with_model_of_folder(raw))


def add_configuration(parser: argparse.ArgumentParser) -> None:
    """Add the options that `configured` takes."""
    parser.add_argument("--config", type=Path, help="JSON file of a TrainerConfig")
    parser.add_argument("--preset", choices=sorted(MODEL_PRESETS), help="model of this name")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")


def as_file(config: TrainerConfig) -> str:
    """Return the whole configuration as JSON, for --config."""
    return json.dumps(config.to_dict(), indent=2) + "\n"


def quiet_torch() -> None:
    """Read by torch as it is imported.

    Else c10d warns of every address without a name, and the profiler of machines without a GPU.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")


def _setting(text: str) -> dict[str, Any]:
    """Read `data.sequence_length=64` as nested JSON; a value that is not JSON is a string."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: must be key=value")
    try:
        nested: Any = json.loads(value, object_pairs_hook=keys_once)
    except ContractError as error:
        raise ConfigError(f"--set {text}: {error}") from error
    # `--set name=llama` needs no quotes: text that is not JSON is a string.
    except ValueError:
        nested = value
    # From the inside out: `a.b=1` becomes {"a": {"b": 1}}.
    for part in reversed(key.split(".")):
        nested = {part: nested}
    return nested
