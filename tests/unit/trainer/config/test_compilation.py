from __future__ import annotations

from typing import Any

import pytest

from drumline_trainer.config import Compile, ConfigError, TrainerConfig


@pytest.mark.parametrize(
    ("beside", "named"),
    [
        ({"fp8": True, "precision": "bf16"}, "fp8"),
        ({"lora": {}}, "lora"),
        ({"model": {"experts": 4}}, "model.experts"),
        ({"data": {"packing": "separate"}}, "data.packing separate"),
        ({"memory": {"recompute": "selective"}}, "memory.recompute selective"),
        ({"memory": {"offload_activations": "cpu"}}, "memory.offload_activations"),
    ],
)
def test_what_the_compiler_would_break_off_at_is_refused(
    beside: dict[str, Any], named: str
) -> None:
    TrainerConfig.from_dict(beside)
    with pytest.raises(ConfigError, match=f"^compile: not with {named}; leave one of the two out"):
        TrainerConfig.from_dict({"compile": "blocks", **beside})


def test_layers_are_compiled_where_it_is_asked_for() -> None:
    assert TrainerConfig().compile is Compile.NONE
    assert TrainerConfig.from_dict({"compile": "blocks"}).compile is Compile.BLOCKS
