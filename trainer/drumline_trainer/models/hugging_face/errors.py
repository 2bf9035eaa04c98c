"""What every folder or model that cannot be exchanged raises."""

from __future__ import annotations

from drumline_trainer.config import ConfigError


class HuggingFaceError(ConfigError):
    """A folder that cannot be read, or a model that has no layout there; says which part."""
