"""A checkpoint is for the model that it was saved of, and what else changed is said."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_contract.config import ConfigError, ModelConfig, TrainerConfig, merge
from drumline_contract.config.model import RopeScaling
from drumline_contract.config.saved import (
    changed_settings,
    model_digest,
    refuse_other_average,
    refuse_other_model,
)
from tests.texts import missing

CONFIG = TrainerConfig.from_dict({"global_batch_size": 8, "steps": 100})


def saved(**changes: Any) -> dict[str, Any]:
    return {"config": merge(CONFIG.to_dict(), changes)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"heads": 2, "kv_heads": 1}, "model.heads is 2 there and 4 here"),
        ({"norm_epsilon": 1e-6}, "model.norm_epsilon is 1e-06 there and 1e-05 here"),
        ({"rope_theta": 5e5}, "model.rope_theta is 500000.0 there and 10000.0 here"),
        ({"rope_scaling": {"factor": 8.0}}, "model.rope_scaling is set there and None here"),
        ({"family": "gpt2"}, "model.family is gpt2 there and llama here"),
    ],
)
def test_weights_of_the_same_shape_that_mean_another_model_are_refused(
    changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match="the checkpoint holds another model") as refused:
        refuse_other_model(saved(model=changes), CONFIG.model)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "changes", [{}, {"dropout": 0.1}, {"balance_weight": 0.01}, {"head_size": 16}]
)
def test_the_same_function_written_otherwise_is_the_same_model(changes: dict[str, Any]) -> None:
    refuse_other_model(saved(model=changes), CONFIG.model)


def test_a_field_that_came_later_was_its_default() -> None:
    older = CONFIG.to_dict()
    del older["model"]["rope_scaling"]
    refuse_other_model({"config": older}, CONFIG.model)
    refuse_other_model({}, CONFIG.model)
    with pytest.raises(ConfigError, match="rope_scaling"):
        refuse_other_model({"config": older}, ModelConfig(rope_scaling=RopeScaling(factor=8.0)))


def test_a_configuration_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="another version of the trainer"):
        refuse_other_model(saved(model={"nonsense": 1}), CONFIG.model)


def test_settings_that_change_the_loss_are_said_and_no_others() -> None:
    assert changed_settings({}, CONFIG) == ""
    same = saved(steps=50, parallelism={"tensor": 2}, checkpoint={"keep": 9}, model_from="/else")
    assert changed_settings(same, CONFIG) == ""
    other = saved(optimizer={"learning_rate": 0.5}, precision="bf16", data={"sequence_length": 64})
    length, rate, precision = (changed_settings(other, CONFIG) or "").split(";")
    assert not missing(length, "data.sequence_length", "64", "128")
    assert not missing(rate, "optimizer.learning_rate", "0.5", str(CONFIG.optimizer.learning_rate))
    assert not missing(precision, "precision", "bf16", "fp32")


def test_many_changes_are_counted_and_not_all_named() -> None:
    other = TrainerConfig.from_dict(
        {
            "model": {"layers": 3, "hidden_size": 32, "ffn_size": 7, "heads": 2, "kv_heads": 1}
            | {"vocab_size": 300, "norm_epsilon": 1e-6, "rope_theta": 3.0, "dropout": 0.5},
            "seed": 9,
        }
    )
    assert changed_settings({"config": other.to_dict()}, CONFIG).endswith("; and 3 more")


def test_the_digest_is_of_what_a_model_computes() -> None:
    assert model_digest(CONFIG.model) == model_digest(ModelConfig(head_size=16, dropout=0.2))
    assert model_digest(CONFIG.model) != model_digest(ModelConfig(rope_theta=3.0))


def test_an_average_begins_and_ends_with_a_run() -> None:
    averaged = saved(optimizer={"average_decay": 0.9})
    refuse_other_average(averaged, average_decay=0.99)
    refuse_other_average(saved(), average_decay=0.0)
    refuse_other_average({"config": {}}, average_decay=0.0)
    refuse_other_average({}, average_decay=0.9)
    with pytest.raises(ConfigError, match=r"0\.9"):
        refuse_other_average(averaged, average_decay=0.0)
    for older in (saved(), {"config": {}}):
        with pytest.raises(ConfigError, match="holds no average of the weights; go on with 0,"):
            refuse_other_average(older, average_decay=0.9)
