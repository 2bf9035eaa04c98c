"""A configuration whose model is described by the folder `model_from`, before it is read.

The operator cannot read the folder, which is in a claim or a bucket of the job. So the operator
checks the rules that hold for every model. The ranks read the folder before they join each other
(`contract.shapes.hugging_face.with_model_of_folder`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from drumline_contract.config.decoding import decode_fields, merge
from drumline_contract.config.errors import ConfigError
from drumline_contract.config.model import ModelConfig
from drumline_contract.config.trainer import TrainerConfig
from drumline_contract.config.variants import Family

_WIDTH = "hidden_size"
_MODULE = "config_json"


def is_of_transformers(raw: Mapping[str, Any]) -> bool:
    """Return whether a configuration selects a model class of transformers."""
    match raw.get("model"):
        case {"family": Family.TRANSFORMERS.value}:
            return True
        case _:
            return False


def has_model_of_folder(raw: Mapping[str, Any]) -> bool:
    """Return whether the folder describes the model, because the configuration does not.

    Such a configuration gives no width, or for transformers no config.json.
    """
    model = raw.get("model", {})
    if not isinstance(model, dict):
        return False
    if is_of_transformers(raw):
        # A configuration with config.json in it is complete.
        folder = raw.get("model_from") or raw.get("config_from")
        return isinstance(folder, str) and not cast("dict[str, Any]", model).get(_MODULE)
    return isinstance(raw.get("model_from"), str) and _WIDTH not in model


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderConfig:
    """A configuration whose model is defined by the folder `model_from`."""

    settings: TrainerConfig
    """Settings of the run. Ignore their model, which is a placeholder."""
    changes: Mapping[str, Any]
    """Fields of the model that override those of the folder, as JSON values."""

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> FolderConfig:
        """Read settings from decoded JSON; ranks check whether changes fit the folder's model.

        Raises:
            ConfigError: no folder is named, the model is also described here, or
                `TrainerConfig.from_dict` rejects the settings.
        """
        changes: dict[str, Any] = raw.get("model", {})
        decode_fields(ModelConfig, changes, path="model.")
        # transformers needs its family in the stand-in, since the rules depend on it.
        stand_in = changes if is_of_transformers(raw) else {}
        settings = TrainerConfig.from_dict({**raw, "model": stand_in})
        if settings.folder is None:
            raise ConfigError(
                "model_from: missing; name the folder or bucket whose model is trained"
            )
        if not has_model_of_folder(raw):
            raise ConfigError(
                f"model.{_WIDTH}: the folder in model_from says what its model is; leave it out, or"
                " name a built-in model"
            )
        return cls(settings=settings, changes=changes)

    def with_model(self, model: ModelConfig) -> TrainerConfig:
        """Return the whole configuration for the model that the folder describes.

        Raises:
            ConfigError: the settings do not fit this model, or it is a class of transformers.
        """
        if self.settings.model.family is Family.TRANSFORMERS:
            raise ConfigError(
                "trainer.model: Transformers is not planned, as its shapes are known to its module"
                " alone; give a built-in model of its size, or FromFolder"
            )
        described = merge(asdict(model), dict(self.changes))
        return TrainerConfig.from_dict({**self.settings.to_dict(), "model": described})

    def written(self) -> dict[str, Any]:
        """Return non-default settings as plain JSON values, without a description of the model."""
        return {**self.settings.written(), "model": dict(self.changes)}
