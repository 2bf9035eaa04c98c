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
        convert: converts a name and a spec to the scheduler's value. A spec that it rejects counts
            as unreadable, because one stored object must not stop the cycle.
    """

    def __init__(
        self, model: type[Spec], *, convert: Callable[[str, Spec], object] = lambda _, spec: spec
    ) -> None:
        self._model = model
        self._convert = convert
        self._specs: dict[str, Spec] = {}
        self._ages: dict[str, tuple[str, str]] = {}
        """Creation time and name of each object, by name."""
        self._problems: dict[str, str] = {}

    @property
    def by_name(self) -> Mapping[str, Spec]:
        """Return all specs, the oldest object first."""
        return self._specs

    def get(self, name: str) -> Spec | None:
        """Return the spec of an object, or None if it is not known."""
        return self._specs.get(name)

    def problem(self, name: str) -> str | None:
        """Return why the newest spec of an object cannot be read, or None if it can."""
        return self._problems.get(name)

    def on_object(self, old: ObjectView | None, new: ObjectView | None) -> str | None:
        """Process an event and return why the spec cannot be read, or None.

        The last readable spec of an object stays in effect.
        """
        if new is None:
            if old is not None:
                self._specs.pop(old.name, None)
                self._ages.pop(old.name, None)
                self._problems.pop(old.name, None)
            return None
        try:
            spec = parse(self._model, new.spec, at="spec")
            # Try the conversion here, so that an impossible spec is rejected before a cycle reads
            # it.
            self._convert(new.name, spec)
        except ValueError as error:
            self._problems[new.name] = str(error)
            return str(error)
        self._specs[new.name] = spec
        self._ages[new.name] = (new.creation_time, new.name)
        # The oldest object first, so that conflicts between objects have one stable winner.
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
        self.version = 0
        """Number of events. A value may differ only after another event."""
        self.polite: frozenset[str | None] = frozenset()
        """Classes with `preemptionPolicy: Never`. None stands for jobs without a class."""

    def on_priority_class(
        self, old: PriorityClassView | None, new: PriorityClassView | None
    ) -> None:
        """Process an event. `new` is None if the class was deleted."""
        self.version += 1
        if old is not None:
            self._classes.pop(old.name, None)
        if new is not None:
            self._classes[new.name] = new
        # A race can leave several defaults. Admission of the API server takes the one with the
        # lowest value (plugin/pkg/admission/priority, getDefaultPriorityClass).
        defaults = [each for each in self._classes.values() if each.global_default]
        self._default = min(defaults, key=lambda each: (each.value, each.name), default=None)
        default = {None: self._default} if self._default is not None else {}
        classes: dict[str | None, PriorityClassView] = {**self._classes, **default}
        self.polite = frozenset(name for name, each in classes.items() if not each.preempts)

    def value_of(self, name: str | None) -> int | None:
        """Return the value of a class, or None if the class does not exist.

        Without a name it is the value of the global default class, or 0 without one.
        """
        known = self._class_of(name)
        if known is None:
            return 0 if name is None else None
        return known.value

    def exists(self, name: str | None) -> bool:
        """Return whether a job may name this class. A job without a class always may."""
        return name is None or name in self._classes

    def _class_of(self, name: str | None) -> PriorityClassView | None:
        return self._default if name is None else self._classes.get(name)
