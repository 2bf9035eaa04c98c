"""A setting beside every value of every axis of the layouts: the cells of the matrix of settings.

The cells of a setting are few layouts in which it meets each axis's every value that it may meet:
what no cell has is refused with a sentence (`layout_validation`, or the configuration itself).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from drumline_contract.config import ConfigError, merge
from drumline_contract.layout_validation import violations
from tests.layouts.cases import DATA, MODELS, Case

_TRIED = 400
"""So many layouts are looked through for those in which a setting meets what it may meet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A few options together, and which layouts they are for."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the layout and of the one process that it is held against."""
    apart: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the layout alone: it is to change nothing."""
    models: Sequence[str] = tuple(MODELS)
    data: Sequence[str] = tuple(DATA)
    tolerance: float = 0.0
    """Largest relative difference of a loss; 0: losses and weights but for rounding."""

    @property
    def whole(self) -> dict[str, Any]:
        """All changes of the layout."""
        return merge(dict(self.changes), dict(self.apart))

    def fits(self, case: Case) -> bool:
        """Whether the trainer accepts it in this layout."""
        if case.model not in self.models or case.data not in self.data:
            return False
        try:
            config = case.config(**self.whole)
        except ConfigError:
            return False
        return not violations(config, world_size=case.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A setting in one layout."""

    setting: Setting
    case: Case

    @property
    def name(self) -> str:
        """For people and tests."""
        return f"{self.setting.name} · {self.case.name}"


def cells_of(setting: Setting, *, cases: Sequence[Case], seed: int) -> list[Cell]:
    """Few layouts in which it meets each value of each axis that it may meet."""
    able = [case for case in cases if case.model in setting.models and case.data in setting.data]
    sampled = random.Random(f"{seed} {setting.name}").sample(able, min(_TRIED, len(able)))
    values = {case: _values(case) for case in sampled if setting.fits(case)}
    waiting = set(itertools.chain.from_iterable(values.values()))
    chosen: list[Cell] = []
    while waiting:
        best = max(values, key=lambda case: len(waiting & values[case]) / case.effort**0.4)
        chosen.append(Cell(setting=setting, case=best))
        waiting -= values[best]
    return chosen


def _values(case: Case) -> frozenset[tuple[str, Any]]:
    return frozenset((axis.name, getattr(case, axis.name)) for axis in fields(case))
