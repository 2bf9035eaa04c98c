from __future__ import annotations

import pytest

from drumline_contract.config import ConfigError, TrainerConfig


@pytest.mark.parametrize("field", ["trainable", "freeze"])
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (" , ,", "must name weights, such as 'output.*'; leave it out"),
        (
            ",".join(f"layers.{number}.*" for number in range(33)),
            "33 patterns are over 32; let * and ? stand for what the names differ in",
        ),
        (
            "output.*," + "*" * 65,
            "a pattern of 65 characters is over 64, and no weight's name is that long",
        ),
        ("x," * 2049, "4098 characters are over 4096"),
    ],
)
def test_patterns_are_few_and_short(field: str, text: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        TrainerConfig.from_dict({field: text})
    assert str(refused.value) == f"{field}: {sentence}"


def test_what_is_said_twice_counts_once() -> None:
    config = TrainerConfig.from_dict({"freeze": "output.*," * 300})
    assert not config.learns("output.weight")
    assert config.learns("embedding.weight")
