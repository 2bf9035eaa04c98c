"""Which job a command or a button is about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedJob:
    """A TrainingJob by its name."""

    namespace: str
    name: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def text(self) -> str:
        """As people call it."""
        return f"trainingjob {self.key}"
