"""What of a cluster this installation decides about: all of it, or its own namespaces and objects.

Several installations share a cluster if each has namespaces, pools and queues of its own. Pods are
read everywhere all the same: a node's free GPUs are what the pods of all owners leave.
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline.settings import Settings
from drumline_api.base import LABEL_INSTALLATION


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationScope:
    """The jobs, pools and queues of one installation."""

    namespaces: tuple[str, ...] = ()
    """Where its jobs are; empty: anywhere."""
    installation: str = ""
    """The label of its pools and queues; empty: those without the label."""
    home: str = ""
    """Where the operator runs; empty: unknown."""

    @classmethod
    def of(cls, settings: Settings) -> InstallationScope:
        """Return the scope that the settings of the Deployment define."""
        return cls(
            namespaces=settings.watch_namespaces,
            installation=settings.installation,
            home=settings.namespace,
        )

    def covers(self, namespace: str) -> bool:
        """Return whether this installation manages the jobs of this namespace."""
        return not self.namespaces or namespace in self.namespaces

    def may_check(self, namespace: str) -> bool:
        """Return whether jobs of this namespace may request quarantined nodes.

        Jobs of the platform that check nodes may. Tenants may not: otherwise a tenant could report
        a node as bad and then use it alone.
        """
        return bool(self.home) and namespace == self.home

    @property
    def reads(self) -> tuple[str | None, ...]:
        """What namespaced objects are listed by: each namespace; None: all at once."""
        return self.namespaces or (None,)

    @property
    def selector(self) -> str:
        """Selects its pools and queues by their labels."""
        if self.installation:
            return f"{LABEL_INSTALLATION}={self.installation}"
        return f"!{LABEL_INSTALLATION}"


EVERYWHERE = InstallationScope()
