"""Where the text comes from."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.config.errors import ConfigError, require_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Where the text comes from. The sample order depends on `seed` of the run alone."""

    source: str = "python-stdlib"
    """`python-stdlib` (this interpreter's own sources) or an absolute folder."""
    pattern: str = "**/*.py"
    """Files of the folder that are read, sorted by path."""
    sequence_length: int = 128

    def __post_init__(self) -> None:
        """Refuse what cannot work. Raises ConfigError."""
        require_positive({"data.sequence_length": self.sequence_length})
        _check_source(self)


def _check_source(data: DataConfig) -> None:
    if data.source != "python-stdlib" and not data.source.startswith("/"):
        raise ConfigError(
            f"data.source: must be python-stdlib or an absolute folder, not {data.source!r}"
        )
    if ".." in data.source.split("/"):
        raise ConfigError("data.source: must not contain '..'")
    if not data.pattern.strip("./") or data.pattern[0] == "/" or ".." in data.pattern.split("/"):
        raise ConfigError(
            "data.pattern: must be a pattern of file names within the folder, as **/*.py, not"
            f" {data.pattern!r}"
        )
