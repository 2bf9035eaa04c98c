"""Decoding a tenant's configuration: a value or a ConfigError, whatever the JSON holds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline_contract.config import ConfigError, ParallelismConfig, TrainerConfig
from drumline_contract.config.decoding import field_kinds
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import divisors, micro_batch_count, violations
from tools.generate.trainer_reference import sections_of

SECTIONS = dict(sections_of(TrainerConfig))
REQUIRED: dict[str, dict[str, Any]] = {
    "model.rope_scaling": {"factor": 2.0},
    "model.latent_attention": {"key_value_rank": 8, "turned_size": 4, "value_size": 8},
}
"""What must be said of some sections."""
HOSTILE: tuple[Any, ...] = (
    *(None, True, "", "x" * 20_000, "\x1b[2J", [], [[]] * 100, {}, {"a": 1}, {"x" * 9000: 1}),
    *(0, -1, 2**31, 2**63, 10**400, -(10**400), 1e308, -1e308, 5e-324, float("nan"), float("inf")),
)


def nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def refusal_of(raw: dict[str, Any]) -> str | None:
    try:
        against = violations(TrainerConfig.from_dict(raw), world_size=4)
    except ConfigError as error:
        return str(error)
    return against[0].text if against else None


OPTIONS = [f"{path}{name}" for path, kind in SECTIONS.items() for name in field_kinds(kind)]


@pytest.mark.parametrize("path", SECTIONS)
def test_every_integer_has_a_bound(path: str) -> None:
    kinds = field_kinds(SECTIONS[path])
    assert [name for name, kind in kinds.items() if kind.type is int and kind.limit is None] == []


@pytest.mark.parametrize(
    "option",
    [
        f"{path}{name}"
        for path, section in SECTIONS.items()
        for name, kind in field_kinds(section).items()
        if kind.type is int
    ],
)
def test_an_integer_above_its_bound_is_refused_by_name(option: str) -> None:
    section, _, name = option.rpartition(".")
    begin = REQUIRED.get(section, {})
    for huge in (2**54, 10**400):
        raw = nested(section, {**begin, name: huge}) if section else {name: huge}
        with pytest.raises(ConfigError, match=rf"^{option}: must be at most \d+$"):
            TrainerConfig.from_dict(raw)


@pytest.mark.parametrize("option", OPTIONS)
def test_no_value_of_an_option_raises_anything_else(option: str) -> None:
    degrees = {"pipeline": 2, "schedule": "interleaved"}
    for value in HOSTILE:
        for base in ({}, {"parallelism": degrees}, {"parallelism": {"data_parallel": "ddp"}}):
            raw = {**base, **nested(option, value)}
            refusal = refusal_of(raw)
            assert refusal is None or len(refusal) <= 1000


def test_a_batch_smaller_than_its_ranks_is_named_in_a_pipeline_too() -> None:
    config = TrainerConfig.from_dict({"global_batch_size": 1, "parallelism": {"pipeline": 2}})
    against = violations(config, world_size=4)
    assert [str(violation.reason) for violation in against] == ["BatchDoesNotDivide"]


def test_a_share_is_split_in_steps_of_its_root() -> None:
    """A trillion, which no configuration may say, would take hours if each number were tried."""
    degrees = ParallelismConfig(pipeline=2)
    config = TrainerConfig(global_batch_size=10**12, parallelism=degrees)
    layout = Layout.of(degrees, world_size=2)
    assert micro_batch_count(layout, config) == 4
    assert len(violations(config, world_size=2)) == 0


@pytest.mark.parametrize("number", [1, 2, 9, 12, 97, 100])
def test_divisors_ascend_and_miss_none(number: int) -> None:
    assert divisors(number) == [part for part in range(1, number + 1) if number % part == 0]


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"parallelism": {"mode": "auto"}, "hardware": {"gpu": "H100"}},
        {"model": {"layers": 3}, "optimizer": {"learning_rate": 1e-4}, "steps": 7},
        {"lora": {"rank": 4}, "data": {"source": "/data", "pattern": "*.txt"}},
    ],
)
def test_what_differs_from_the_defaults_is_the_same_configuration(raw: dict[str, Any]) -> None:
    config = TrainerConfig.from_dict(raw)
    written = json.loads(json.dumps(config.written()))
    assert TrainerConfig.from_dict(written) == config
    assert written.keys() <= raw.keys()
