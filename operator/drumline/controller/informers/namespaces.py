"""Namespaces: their labels, which open queues to them, and whether they are terminating."""

from __future__ import annotations

from drumline.kube.views import NamespaceView
from drumline_api.trainingqueue import TrainingQueueSpec


class NamespaceCache:
    """The namespaces as last seen. Without read access, selectors match no namespace."""

    def __init__(self) -> None:
        self._labels: dict[str, dict[str, str]] = {}
        self._selected: dict[str, frozenset[str]] = {}
        """Namespaces by text of the selector, until a label changes."""
        self.terminating: set[str] = set()
        """Namespaces that are being deleted. Nothing can be created in them."""

    def on_namespace(self, old: NamespaceView | None, new: NamespaceView | None) -> bool:
        """Process an event and return whether it changes any decision. `new` is None if deleted."""
        if new is None:
            known = None if old is None else self._labels.pop(old.name, None)
            self.terminating.discard("" if old is None else old.name)
            changed = known is not None
        else:
            changed = self._labels.get(new.name) != new.labels
            changed |= new.terminating != (new.name in self.terminating)
            self._labels[new.name] = new.labels
            (self.terminating.add if new.terminating else self.terminating.discard)(new.name)
        # Any label may change the result of any selector.
        if changed:
            self._selected.clear()
        return changed

    @property
    def are_known(self) -> bool:
        """Return whether any namespace was seen."""
        return bool(self._labels)

    def may_exist(self, name: str) -> bool:
        """Return whether a namespace exists. True without read access."""
        return not self._labels or name in self._labels

    def selected(self, spec: TrainingQueueSpec) -> frozenset[str]:
        """Return the namespaces that a queue's selector matches. O(1) while no label changes."""
        selector = spec.namespace_selector
        if selector is None:
            return frozenset()
        text = str(selector)
        known = self._selected.get(text)
        if known is None:
            known = self._selected[text] = frozenset(
                name for name, labels in self._labels.items() if selector.selects(labels)
            )
        return known

    def is_open(self, spec: TrainingQueueSpec, namespace: str) -> bool:
        """Return whether a queue is open to a namespace."""
        return (
            spec.is_open_to_all
            or namespace in (spec.namespaces or ())
            or namespace in self.selected(spec)
        )
