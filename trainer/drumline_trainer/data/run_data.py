"""The samples of a run: what it trains on and, where it evaluates, what it does not."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.config.bounds import MOST_STEPS
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.data.held_out import (
    HeldOutDataset,
    evaluation_source,
    held_out_part,
    withhold,
)
from drumline_trainer.data.preference_dataset import PreferenceDataset
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.vocabulary import check_vocabulary


class RunData(NamedTuple):
    """Both may read from one text: not in two threads."""

    training: Dataset
    held_out: HeldOutDataset | None


def open_run_data(config: TrainerConfig) -> RunData:
    """Open what the configuration names, and check that the model knows its tokens.

    Raises:
        ConfigError: as `open_dataset` and `check_vocabulary`, or too little to hold anything out.
    """
    # Phase 1: the training data. It is checked against the model before anything else is opened.
    folder = None if config.folder is None else model_folder(config.folder)
    training = open_dataset(config.data, seed=config.seed, model_folder=folder, model=config.model)
    check_vocabulary(training, config)
    _check_paired(training, config)
    evaluation = config.evaluation
    if evaluation is None:
        return RunData(training=training, held_out=None)
    # Phase 2: held-out samples, from other files or from windows of the training data.
    elsewhere = evaluation_source(config.data, evaluation)
    if elsewhere is None:
        # `withhold` first: the training set must lose the windows before `held_out_part` reads
        # them.
        training = withhold(training, evaluation)
        return RunData(training=training, held_out=held_out_part(training, evaluation))
    other = open_dataset(elsewhere, seed=config.seed, model_folder=folder, model=config.model)
    check_vocabulary(other, config)
    return RunData(training=training, held_out=held_out_part(other, evaluation))


def with_steps_of_epochs(config: TrainerConfig, training: Dataset) -> TrainerConfig:
    """Return the configuration with its epochs in steps. The last step may begin another epoch.

    Raises:
        ConfigError: there are more steps than a run may have.
    """
    if config.epochs is None:
        return config
    # Epochs may be a fraction. The product is exact enough, because MOST_STEPS is far below 2^53.
    steps = config.epochs * training.epoch_samples / config.global_batch_size
    if steps > MOST_STEPS:
        raise ConfigError(
            f"epochs: {config.epochs:g} are {steps:g} steps; {MOST_STEPS} are the most"
        )
    return replace(config, steps=math.ceil(steps))


def _check_paired(training: Dataset, config: TrainerConfig) -> None:
    """Check that the loss of preferences is used with pairs of answers, and only with them."""
    paired = isinstance(training, PreferenceDataset)
    if paired is (config.dpo is not None):
        return
    # The caller gets no dataset that it could close.
    training.close()
    if paired:
        raise ConfigError("dpo: data.source holds pairs, 'chosen' and 'rejected'; set dpo.beta")
    raise ConfigError("dpo: data.source holds no pairs, records with 'chosen' and 'rejected'")
