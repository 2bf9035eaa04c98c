"""Specs of GpuPools and TrainingQueues by name, and the values of PriorityClasses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from drumline.kube.views import ObjectView, PriorityClassView
from drumline_api.gpupool import GpuPoolSpec
from drumline_api.load import parse
from drumline_api.trainingqueue import TrainingQueueSpec

Spec = TypeVar("Spec", GpuPoolSpec, TrainingQueueSpec)


class SpecCache(Generic[Spec]):
    """The newest readable spec of every object of one cluster-scoped kind.

    Args:
        model: the model of the spec.
        convert: makes of a name and a spec what the scheduler decides on. A spec of which it cannot
            be made cannot be read: one stored object must not stop the cycle.
    """

    def __init__(
        self, model: type[Spec], *, convert: Callable[[str, Spec], object] = lambda _, spec: spec
    ) -> None:
        self._model = model
        self._convert = convert
        self._specs: dict[str, Spec] = {}
        self._ages: dict[str, tuple[str, str]] = {}
        """By name: when the object was created, and its name."""
        self._problems: dict[str, str] = {}

    @property
    def by_name(self) -> Mapping[str, Spec]:
        """All specs, the oldest object first."""
        return self._specs

    def get(self, name: str) -> Spec | None:
        """The spec of this object, if it is known."""
        return self._specs.get(name)

    def problem(self, name: str) -> str | None:
        """Why the newest spec of this object cannot be read; None if it can."""
        return self._problems.get(name)

    def on_object(self, old: ObjectView | None, new: ObjectView | None) -> str | None:
        """Take in an event; returns why the spec cannot be read: the last good one stays then."""
        if new is None:
            if old is not None:
                self._specs.pop(old.name, None)
                self._ages.pop(old.name, None)
                self._problems.pop(old.name, None)
            return None
        try:
            spec = parse(self._model, new.spec, at="spec")
            self._convert(new.name, spec)
        except ValueError as error:
            self._problems[new.name] = str(error)
            return str(error)
        self._specs[new.name] = spec
        self._ages[new.name] = (new.creation_time, new.name)
        self._specs = {name: self._specs[name] for name in sorted(self._specs, key=self._age)}
        self._problems.pop(new.name, None)
        return None

    def _age(self, name: str) -> tuple[str, str]:
        return self._ages[name]


class PriorityCache:
    """The values of the PriorityClasses."""

    def __init__(self) -> None:
        self._classes: dict[str, PriorityClassView] = {}
        self._default: PriorityClassView | None = None
        self.polite: frozenset[str | None] = frozenset()
        """Classes with `preemptionPolicy: Never`; None if jobs without a class have one."""

    def on_priority_class(
        self, old: PriorityClassView | None, new: PriorityClassView | None
    ) -> None:
        """Take in an event; None as `new`: deleted."""
        if old is not None:
            self._classes.pop(old.name, None)
            self._default = None if old.global_default else self._default
        if new is not None:
            self._classes[new.name] = new
            self._default = new if new.global_default else self._default
        default = {None: self._default} if self._default is not None else {}
        classes: dict[str | None, PriorityClassView] = {**self._classes, **default}
        self.polite = frozenset(name for name, each in classes.items() if not each.preempts)

    def value_of(self, name: str | None) -> int | None:
        """The value of this class; the global default without a name, None for an unknown class."""
        known = self._class_of(name)
        if known is None:
            return 0 if name is None else None
        return known.value

    def exists(self, name: str | None) -> bool:
        """Whether a job may name this class: it exists, or no class is named."""
        return name is None or name in self._classes

    def _class_of(self, name: str | None) -> PriorityClassView | None:
        return self._default if name is None else self._classes.get(name)
