from __future__ import annotations

import pytest

from drumline_contract.config import Compile, ConfigError, TrainerConfig


def test_products_that_are_kept_by_name_are_not_seen_in_kernels() -> None:
    selective = {"memory": {"recompute": "selective"}}
    TrainerConfig.from_dict(selective)
    with pytest.raises(ConfigError, match=r"^compile: its kernels are not .* none or full$"):
        TrainerConfig.from_dict({"compile": "blocks", **selective})


def test_layers_are_compiled_where_it_is_asked_for() -> None:
    assert TrainerConfig().compile is Compile.NONE
    assert TrainerConfig.from_dict({"compile": "blocks"}).compile is Compile.BLOCKS
