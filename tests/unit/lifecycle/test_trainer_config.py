"""spec.trainer -> the trainer's configuration."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.lifecycle.manifests.trainer_config import checkpoint_folder, trainer_config
from drumline_contract import checked_bucket
from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    Family,
    FolderConfig,
    HardwareConfig,
    TrainerConfig,
)
from tests.builders import a_job


def config_of(**spec: Any) -> TrainerConfig:
    config = trainer_config(a_job(**spec).spec)
    assert isinstance(config, TrainerConfig)
    return config


def of_folder(*, overrides: dict[str, Any] | None = None, **spec: Any) -> FolderConfig:
    """Of a job whose model is that of /data/mistral, where nothing else is said."""
    trainer = spec.pop("trainer", {})
    overrides = {"model_from": "/data/mistral", **(overrides or {})}
    config = trainer_config(
        a_job(trainer={"model": "FromFolder", **trainer, "overrides": overrides}, **spec).spec
    )
    assert isinstance(config, FolderConfig)
    return config


def test_typed_fields_arrive() -> None:
    config = config_of(
        trainer={
            "model": "tiny",
            "steps": 7,
            "globalBatchSize": 8,
            "sequenceLength": 64,
            "precision": "bf16",
            "seed": 5,
            "data": {"claimName": "text", "path": "books", "pattern": "*.txt"},
        },
        checkpoint={"claimName": "saves", "everySteps": 9, "keep": 2},
    )
    assert config.model == MODEL_PRESETS["tiny"]
    assert (config.steps, config.global_batch_size, config.precision, config.seed) == (
        7,
        8,
        "bf16",
        5,
    )
    assert (config.data.source, config.data.pattern, config.data.sequence_length) == (
        "/data/books",
        "*.txt",
        64,
    )
    assert (config.checkpoint.every_steps, config.checkpoint.keep) == (9, 2)


def test_overrides_win_and_leave_the_rest() -> None:
    plain = config_of(trainer={"model": "tiny"})
    config = config_of(
        trainer={"model": "tiny", "overrides": {"optimizer": {"learning_rate": 0.25}}}
    )
    assert config.optimizer.learning_rate == 0.25
    assert config.optimizer.beta1 == plain.optimizer.beta1
    assert config.model == plain.model


@pytest.mark.parametrize(
    ("trainer", "said"),
    [
        ({"model": "huge"}, "trainer.model: 'huge' is unknown; use one of "),
        ({"overrides": {"stepz": 1}}, "stepz"),
        ({"overrides": {"optimizer": {"learning_rate": "fast"}}}, "learning_rate"),
        ({"overrides": {"note": "x" * 17_000}}, "is over 16384"),
        ({"globalBatchSize": 3}, "3"),
        ({"parallelism": {"tensor": 3}}, "parallelism"),
        (
            {"parallelism": {"pipeline": 2}, "overrides": {"model": {"layers": 1}}},
            "2 stages need as many layers; the model has 1",
        ),
    ],
)
def test_what_cannot_work_is_named(trainer: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(trainer=trainer)


ELASTIC: dict[str, Any] = {
    "nodes": 4,
    "gpusPerNode": 2,
    "minNodes": 1,
    "checkpoint": {"claimName": "saves"},
}


def test_an_elastic_gang_keeps_its_micro_batch_size() -> None:
    config = config_of(trainer={"globalBatchSize": 48}, **ELASTIC)
    assert config.micro_batch_size == 6
    assert config_of(trainer={"globalBatchSize": 48}).micro_batch_size is None


def test_degrees_reach_the_trainer_and_leave_the_batch_to_the_other_ranks() -> None:
    degrees = {"tensor": 2, "dataParallel": "zero1"}
    trainer = {"globalBatchSize": 48, "parallelism": degrees}
    config = config_of(trainer=trainer, **ELASTIC)
    assert (config.parallelism.tensor, config.parallelism.data_parallel) == (2, "zero1")
    assert config.micro_batch_size == 12
    assert config_of(trainer={**trainer, "microBatchSize": 3}, **ELASTIC).micro_batch_size == 3


def test_an_override_must_fit_every_size_of_an_elastic_gang() -> None:
    trainer = {"globalBatchSize": 48, "overrides": {"global_batch_size": 56}}
    with pytest.raises(ConfigError, match=r"56.*6 ranks"):
        config_of(trainer=trainer, **ELASTIC)


def test_a_job_of_another_form_has_no_configuration() -> None:
    with pytest.raises(ConfigError, match="trainer is missing"):
        config_of(template={"image": "any:1"})


def test_a_new_job_of_an_old_name_starts_in_a_folder_of_its_own() -> None:
    spec = a_job(checkpoint={"claimName": "saves"}).spec
    first = checkpoint_folder(spec, name="llama", uid="11111111-a")
    second = checkpoint_folder(spec, name="llama", uid="22222222-a")
    assert (first, second) == ("/checkpoints/llama-11111111", "/checkpoints/llama-22222222")


def test_a_bucket_has_a_prefix_of_the_jobs_own() -> None:
    spec = a_job(checkpoint={"bucket": "gs://saves"}).spec
    place = checkpoint_folder(spec, name="llama", uid="11111111-a")
    assert place == "gs://saves/llama-11111111"
    assert checked_bucket(place) == place


def test_a_folder_of_the_users_own_is_continued_by_every_job_that_names_it() -> None:
    spec = a_job(checkpoint={"claimName": "saves", "path": "runs/a"}).spec
    assert checkpoint_folder(spec, name="any", uid="12345678-a") == "/checkpoints/runs/a"
    assert checkpoint_folder(a_job().spec, name="any", uid="12345678-a") is None


def test_ranks_choose_where_the_mode_is_auto() -> None:
    trainer = {"globalBatchSize": 6, "parallelism": {"mode": "Auto", "tensor": 2}}
    config = config_of(nodes=6, gpusPerNode=2, trainer=trainer)  # 6 samples, 12 ranks
    assert (config.parallelism.mode, config.parallelism.tensor) == ("auto", 2)
    assert config.micro_batch_size is None


def test_a_chosen_layout_has_to_exist() -> None:
    trainer = {"globalBatchSize": 7, "parallelism": {"mode": "Auto"}}
    with pytest.raises(ConfigError, match="global_batch_size"):
        config_of(nodes=6, gpusPerNode=2, trainer=trainer)


def test_overrides_win_over_what_a_pool_says() -> None:
    spec = a_job(trainer={"overrides": {"hardware": {"network_gbps": 100}}}).spec
    config = trainer_config(spec, HardwareConfig(gpu="H100", network_gbps=400))
    assert (config.hardware.gpu, config.hardware.network_gbps) == ("H100", 100)


def test_of_a_folders_model_the_ranks_are_told_what_stands_above_it_and_no_more() -> None:
    written = of_folder(
        trainer={"steps": 7, "precision": "bf16"},
        overrides={"model": {"dropout": 0.1}, "lora": {"rank": 4}},
    ).written()
    assert (written["model"], written["model_from"]) == ({"dropout": 0.1}, "/data/mistral")
    assert (written["steps"], written["precision"], written["lora"]["rank"]) == (7, "bf16", 4)


def test_a_layout_is_refused_where_no_folder_could_help() -> None:
    of_folder(nodes=2, trainer={"parallelism": {"tensor": 2}, "sequenceLength": 33})
    of_folder(nodes=2, trainer={"parallelism": {"pipeline": 2}})
    of_folder(nodes=3, trainer={"globalBatchSize": 18, "parallelism": {"tensor": 3}})
    with pytest.raises(ConfigError, match=r"33.*4 ranks"):
        of_folder(nodes=2, overrides={"global_batch_size": 33})
    with pytest.raises(ConfigError, match="1f1b has exactly 1, not 2"):
        of_folder(
            nodes=2,
            trainer={"parallelism": {"pipeline": 2}},
            overrides={"parallelism": {"stages_per_rank": 2}},
        )


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"model_from": None}, "model_from: missing"),
        ({"model_from": "s3://Bucket/model"}, "model_from: must be a folder, s3://BUCKET"),
        ({"model": {"hidden_size": 64}}, "model.hidden_size: the folder in model_from"),
        ({"model": {"layerz": 3}}, "did you mean 'layers'"),
    ],
)
def test_a_folders_model_has_a_folder_and_no_second_description(
    overrides: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        of_folder(overrides=overrides)


def test_a_built_in_model_stays_one_where_weights_begin_from_a_folder() -> None:
    config = config_of(trainer={"overrides": {"model_from": "/data/tiny"}})
    assert config.written()["model"] == {"hidden_size": MODEL_PRESETS["tiny"].hidden_size}


def test_a_model_of_transformers_is_left_to_its_folder() -> None:
    described = of_folder(trainer={"model": "Transformers"})
    assert described.settings.model.family is Family.TRANSFORMERS
    assert described.written()["model"] == {"family": "transformers"}
    begun = of_folder(
        trainer={"model": "Transformers"},
        overrides={"model_from": None, "config_from": "/data/described"},
    )
    assert begun.settings.config_from == "/data/described"


@pytest.mark.parametrize(
    ("trainer", "overrides", "named"),
    [
        ({"parallelism": {"pipeline": 2}}, {}, "parallelism.pipeline"),
        ({"parallelism": {"mode": "Auto"}}, {}, "parallelism.mode"),
        ({}, {"model_from": None}, "model_from"),
    ],
)
def test_what_a_model_of_transformers_lacks_is_refused_before_it_waits(
    trainer: dict[str, Any], overrides: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError, match=named):
        of_folder(trainer={"model": "Transformers", **trainer}, overrides=overrides, nodes=2)
