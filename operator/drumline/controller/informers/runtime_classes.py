"""RuntimeClasses: what they add to the pods of the pools that name them.

Admission adds the overhead of a pod's RuntimeClass to its requests, and the node selector and the
tolerations of the class to its own. The scheduler counts all three before the first pod exists.
If the operator may not read the kind, it learns the overhead from the first pod.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from drumline.kube.views import RuntimeClassView
from drumline_api.gpupool import GpuPoolSpec


class RuntimeClassCache:
    """RuntimeClasses as last seen. For one event loop."""

    def __init__(self) -> None:
        self._by_name: dict[str, RuntimeClassView] = {}

    def on_runtime_class(self, old: RuntimeClassView | None, new: RuntimeClassView | None) -> bool:
        """Take in an event; None as `new`: deleted; returns whether it may change a decision."""
        view = new or old
        if view is None:
            return False
        before = self._by_name.pop(view.name, None)
        if new is not None:
            self._by_name[new.name] = new
        return _counts(before) != _counts(new)

    def of(self, pool: GpuPoolSpec | None) -> RuntimeClassView | None:
        """Return the class that the pods of a pool get, if it has one that exists."""
        profile = pool.pod_profile if pool is not None else None
        if profile is None or profile.runtime_class_name is None:
            return None
        return self._by_name.get(profile.runtime_class_name)

    def overhead(self, pools: Iterable[GpuPoolSpec | None]) -> Mapping[str, int]:
        """Return the largest overhead of each resource over some pools; CPU in thousandths."""
        if not self._by_name:
            return {}
        most: dict[str, int] = {}
        for pool in pools:
            runtime_class = self.of(pool)
            for name, amount in runtime_class.overhead if runtime_class is not None else ():
                most[name] = max(amount, most.get(name, 0))
        return most


def _counts(view: RuntimeClassView | None) -> object:
    return view and (view.overhead, view.node_selector, view.tolerations)
