"""Identify the job of a command or a button."""

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
    def words(self) -> str:
        """The words that name it in a command, from every context of a kubeconfig."""
        return f"{self.name} -n {self.namespace}"

    @property
    def text(self) -> str:
        """Return the name for people."""
        return f"trainingjob {self.key}"
