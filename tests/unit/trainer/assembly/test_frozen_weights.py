"""Which weights of a model stay as they begin, and what is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_trainer.assembly.assemble import freeze_weights
from drumline_trainer.models.build import build_on_meta


def learning(**options: Any) -> set[str]:
    config = TrainerConfig.from_dict({"model": {"tied_embeddings": False}, **options})
    model = build_on_meta(config.model)
    freeze_weights(model, config)
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_patterns_say_what_learns_or_what_does_not() -> None:
    every = learning()
    assert learning(trainable="output.*, norm.weight") == {"output.weight", "norm.weight"}
    frozen = learning(freeze="embedding.*,layers.0.*")
    assert frozen == {name for name in every if not name.startswith(("embedding", "layers.0"))}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"trainable": "lm_head.*"},
            "trainable: no weight of the model is called 'lm_head.*'",
        ),
        ({"freeze": "norm.wait"}, "called 'norm.wait'; one is called 'norm.weight'"),
        ({"freeze": "*"}, "freeze: no weight is left that learns"),
        ({"freeze": " , "}, "freeze: must name weights"),
        ({"freeze": "a" * 5000}, "freeze: 5000 characters are over 4096"),
        ({"freeze": "norm.*", "trainable": "output.*"}, "trainable: names what learns, and freeze"),
        ({"freeze": "norm.*", "lora": {}}, "freeze: not with lora"),
        ({"trainable": "norm.*", "dpo": {}}, "trainable: not with dpo"),
        (
            {"freeze": "norm.*", "parallelism": {"local_sgd": {}, "data_parallel": "ddp"}},
            "freeze: not with local_sgd",
        ),
        (
            {
                "freeze": "norm.*",
                "memory": {"offload_parameters": "cpu"},
                "parallelism": {"data_parallel": "fsdp"},
            },
            "freeze: not with memory.offload_parameters",
        ),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        learning(**options)
