"""The three ways to a cluster behind one interface, and which one a machine gets."""

from __future__ import annotations

from typing import Protocol

from tools.cluster.existing import Existing
from tools.cluster.kind import Kind
from tools.cluster.model import Cluster, ClusterError, ClusterSpec, Provider
from tools.cluster.native import Native
from tools.cluster.progress import Progress


class ClusterProvider(Protocol):
    """One way to a cluster."""

    def missing(self, spec: ClusterSpec) -> str | None:
        """What keeps it from making this cluster here, as a sentence; None when it can."""
        ...

    def start(self, spec: ClusterSpec, *, progress: Progress) -> Cluster:
        """Make it; the cluster's folder exists and is empty."""
        ...

    def runs(self, cluster: Cluster) -> bool:
        """Whether a cluster it made still runs."""
        ...

    def load_images(self, cluster: Cluster, *, progress: Progress) -> None:
        """Bring the images of the repository as it is now to a running cluster."""
        ...

    def remove(self, name: str) -> None:
        """Remove all that it made under that name, finished or not."""
        ...


PROVIDERS: dict[Provider, ClusterProvider] = {
    Provider.NATIVE: Native(),
    Provider.KIND: Kind(),
    Provider.EXISTING: Existing(),
}

_AUTOMATIC = (Provider.NATIVE, Provider.KIND)
"""In this order; an existing cluster is touched only when asked for by name."""


def choose(spec: ClusterSpec) -> tuple[Provider, str]:
    """The provider for this machine and request, and why.

    Raises:
        ClusterError: none can; the message names what each one misses.
    """
    if spec.provider is not None:
        reason = PROVIDERS[spec.provider].missing(spec)
        if reason is not None:
            raise ClusterError(f"provider {spec.provider}: {reason}")
        return spec.provider, "asked for"
    reasons: list[str] = []
    for provider in _AUTOMATIC:
        reason = PROVIDERS[provider].missing(spec)
        if reason is None:
            return provider, "; ".join(reasons) or "nothing it needs is missing"
        reasons.append(f"not {provider}: {reason}")
    hint = "a cluster of your own: --provider existing; without real nodes: --nodes 0"
    raise ClusterError(f"no cluster of {spec.nodes} nodes here. {'; '.join(reasons)} ({hint})")
