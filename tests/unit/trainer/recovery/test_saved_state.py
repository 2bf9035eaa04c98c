"""A run resumes only from a state that it can use."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_contract.config import ConfigError, OptimizerConfig, TrainerConfig
from drumline_trainer.checkpoint.errors import CorruptCheckpointError
from drumline_trainer.recovery.saved_state import check_state

AVERAGED = TrainerConfig(optimizer=OptimizerConfig(average_decay=0.99))
PLAIN = TrainerConfig()


def saved(config: TrainerConfig, **changes: object) -> dict[str, Any]:
    return {"cursor": 8, "config": config.to_dict(), **changes}


@pytest.mark.parametrize("config", [PLAIN, AVERAGED])
def test_the_same_settings_resume(config: TrainerConfig) -> None:
    check_state(saved(config), config=config)


@pytest.mark.parametrize(("there", "here"), [(AVERAGED, PLAIN), (PLAIN, AVERAGED)])
def test_an_average_on_one_side_only_is_refused(there: TrainerConfig, here: TrainerConfig) -> None:
    with pytest.raises(ConfigError, match="average_decay"):
        check_state(saved(there), config=here)


@pytest.mark.parametrize("cursor", [-1, True, None, "8", 1 << 62])
def test_a_cursor_that_counts_no_samples_is_refused(cursor: object) -> None:
    with pytest.raises(CorruptCheckpointError, match="cursor"):
        check_state(saved(PLAIN, cursor=cursor), config=PLAIN)
