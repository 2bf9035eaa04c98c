"""Which options of the trainer, and which values of them, some cell of the matrix has.

An option of a few values (an enum, a switch) has to have each of them in some cell; any other one
value that is not its default. What has none stands in `REASONS`, with the reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass
from enum import StrEnum
from typing import Any, Final

from drumline_contract.config import TrainerConfig
from drumline_contract.config.decoding import field_kinds
from tools.generate.trainer_reference import options_of, sections_of

_PLANNED: Final = "what the planner reckons with; the layout it comes to is a cell's"
_FIGURES: Final = "figures that are written, and read by no step"
_TIMING: Final = (
    "asynchronous workers' losses depend on who is first; tests/gloo/parallelism/test_workers.py"
)
_MODULE: Final = (
    "built by another library; tests/gloo/test_transformers_modules.py, _tensor.py and"
    " test_architectures.py train it beside a plain loop"
)
_LOOKS: Final = "what is shown or written beside a run; tests/gloo/test_looks_while_training.py"
REASONS: Final[Mapping[str, str]] = {
    "epochs": "how many steps there are; tests/unit/trainer/data/test_run_data.py",
    "heartbeat_seconds": "how often a rank says where it stands",
    "data.cache_bytes": "how much of streamed shards is kept; tests/unit/trainer/data",
    "checkpoint.continue_from": "whose checkpoints count; tests/unit/trainer/checkpoint",
    "checkpoint.export_every_steps": _LOOKS,
    "checkpoint.export_keep": _LOOKS,
    "evaluation.prompts": _LOOKS,
    "evaluation.prompt_tokens": _LOOKS,
    "config_from": _MODULE,
    "model.config_json": _MODULE,
    "model.family=transformers": _MODULE,
    "hardware": _PLANNED,
    "metrics": _FIGURES,
    "profile": "what is recorded; tests/unit/trainer/profiling",
    "parallelism.server.mode=asynchronous": _TIMING,
    "parallelism.server.max_staleness": _TIMING,
}
"""By the path of an option or section, or of one value: path=value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What some cell has to have."""

    path: str
    value: str | None = None
    """None: any but the default."""
    default: str = ""

    @property
    def name(self) -> str:
        """As `REASONS` calls it."""
        return self.path if self.value is None else f"{self.path}={self.value}"

    @property
    def reason(self) -> str | None:
        """The key of `REASONS` that excuses it."""
        parts = self.path.split(".")
        above = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        return next((key for key in (self.name, *above) if key in REASONS), None)

    def is_met(self, had: Mapping[str, set[str]]) -> bool:
        """By what cells have."""
        values = had.get(self.path, set())
        return self.value in values if self.value is not None else bool(values - {self.default})


def demands() -> list[Demand]:
    """Of every option of the trainer."""
    return [
        demand
        for path, section in sections_of(TrainerConfig)
        for option, _ in options_of(section)
        for demand in _demands_of(section, option, path=f"{path}{option.name}")
    ]


def _demands_of(section: type[Any], option: Field[Any], *, path: str) -> list[Demand]:
    kind = field_kinds(section)[option.name]
    if issubclass(kind.type, StrEnum):
        return [Demand(path=path, value=str(member)) for member in kind.type]
    if kind.type is bool:
        return [Demand(path=path, value=str(value)) for value in (False, True)]
    return [Demand(path=path, default=str(option.default))]


def had_by(configs: Iterable[TrainerConfig]) -> dict[str, set[str]]:
    """The values that each option has in these."""
    values: dict[str, set[str]] = defaultdict(set)
    for config in configs:
        for path, value in _options(config.to_dict()):
            values[path].add(str(value))
    return values


def _options(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every option with its value, sections included."""
    for key, value in section.items():
        yield f"{path}{key}", value
        if isinstance(value, Mapping):
            yield from _options(value, f"{path}{key}.")
