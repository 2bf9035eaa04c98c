"""The samples of a run: what it trains on and, where it evaluates, what it does not."""

from __future__ import annotations

import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from drumline_contract.buckets.path import AnyPath, read_file
from drumline_contract.config import ConfigError, DataConfig, TrainerConfig
from drumline_contract.config.bounds import MOST_STEPS
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.data.corpus import Corpus, open_corpus
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.data.document_dataset import DocumentDataset
from drumline_trainer.data.held_out import (
    HeldOutDataset,
    evaluation_source,
    held_out_part,
    withhold,
)
from drumline_trainer.data.mixture import MixtureDataset
from drumline_trainer.data.preference_dataset import PreferenceDataset
from drumline_trainer.data.record_text import MemoryText
from drumline_trainer.data.records.tokenizer import MAX_TOKENIZER_BYTES, TOKENIZER_FILE
from drumline_trainer.data.sources import mixture_parts, open_dataset
from drumline_trainer.data.text_dataset import TextDataset


class RunData(NamedTuple):
    """Both may read from one text: not in two threads."""

    training: Dataset
    held_out: HeldOutDataset | None


def open_run_data(config: TrainerConfig) -> RunData:
    """Open what the configuration names, and check that the model knows its tokens.

    Raises:
        ConfigError: as `open_dataset` and `check_vocabulary`, too little to hold anything out, or
            held-out samples that are trained on or number their classes otherwise.
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
    _refuse_learned(training, config.data, other, elsewhere)
    _refuse_other_classes(training, other)
    return RunData(training=training, held_out=held_out_part(other, evaluation))


def _refuse_learned(
    training: Dataset, learned: DataConfig, other: Dataset, measured: DataConfig
) -> None:
    """Refuse held-out samples that are trained on: their loss would say nothing of other text.

    Args:
        training: the training data.
        learned: its configuration.
        other: the held-out data.
        measured: its configuration.

    Raises:
        ConfigError: a file is in both, or both are the same shards or images.
    """
    shared = None
    if _is_listed(training) and _is_listed(other):
        both = sorted(_files(learned) & _files(measured))
        shared = f"{both[0]} is trained on" if both else None
    # Token shards and images are read whole, whatever the pattern.
    elif training.fingerprint() == other.fingerprint():
        shared = "all of it is trained on"
    if shared is not None:
        training.close()
        other.close()
        raise ConfigError(
            f"evaluation: {shared}; name files in evaluation.pattern or evaluation.source that"
            " data.pattern does not match, or leave both out to hold out evaluation.share"
        )


def _refuse_other_classes(training: Dataset, other: Dataset) -> None:
    """Refuse held-out images whose folders number the classes otherwise than those of training.

    A class that is absent there would shift the numbers of all classes after it.

    Raises:
        ConfigError: a class has another number.
    """
    learned, measured = training.class_names(), other.class_names()
    if not learned or measured == learned[: len(measured)]:
        return
    number, name = next(
        (number, name)
        for number, name in enumerate(measured)
        if learned[number : number + 1] != (name,)
    )
    here = f"class {learned.index(name)}" if name in learned else "absent"
    training.close()
    other.close()
    raise ConfigError(
        f"evaluation.source: the folder {name} is class {number} there and {here} in data.source;"
        " images are measured by the classes that the model learns; give both the same folders"
    )


def _is_listed(dataset: Dataset) -> bool:
    """Return whether the samples come from the files that a pattern matches."""
    if isinstance(dataset, MixtureDataset):
        return all(map(_is_listed, dataset.parts))
    return isinstance(dataset, TextDataset | DocumentDataset) and isinstance(
        dataset.text, MemoryText | Corpus
    )


def _files(config: DataConfig) -> set[Path]:
    """Return the files that are read, without links."""
    corpora = map(open_corpus, mixture_parts(config))
    return {(each.folder / name).resolve() for each in corpora for name in each.paths}


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


_TOKENIZER_FILES: Final = (TOKENIZER_FILE, "tokenizer.model", "vocab.json")
_MAX_FOR_BYTES: Final = 512
"""Tokens of a model of bytes: the 256 bytes, and special ones."""


def check_vocabulary(dataset: Dataset, config: TrainerConfig) -> None:
    """Raise ConfigError where the model cannot take these samples, or would misread them."""
    dataset.check_model(config.model)
    # Each part may have a tokenizer of its own, such as shards beside records.
    if isinstance(dataset, MixtureDataset):
        for part in dataset.parts:
            check_vocabulary(part, config)
    # Models that begin at random accept any tokens: their vocabulary has no meaning yet.
    if config.folder is None or not isinstance(dataset, TextDataset | DocumentDataset):
        return
    folder, made_with = model_folder(config.folder), dataset.text.tokenizer_sha256
    if made_with is None:
        _refuse_bytes(folder, config)
    elif config.data.tokenizer is None:  # else the shards are what the run asks for, in writing
        _refuse_other_tokenizer(folder, made_with)


def _refuse_bytes(folder: AnyPath, config: TrainerConfig) -> None:
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    # Either sign is enough. Published models of bytes have no tokenizer and at most 512 tokens.
    if has_tokenizer or config.model.vocab_size > _MAX_FOR_BYTES:
        raise ConfigError(
            f"data.source: {config.data.source} is text, which is read as bytes, and the model of"
            f" {folder} knows {config.model.vocab_size} tokens of a tokenizer; make token shards"
            f" with python -m drumline_trainer.data.tokenize --source {config.data.source}"
            f" --tokenizer {folder / TOKENIZER_FILE} --output FOLDER, then set data.source to"
            " FOLDER"
        )


def _refuse_other_tokenizer(folder: AnyPath, made_with: str) -> None:
    file = folder / TOKENIZER_FILE
    try:
        digest = hashlib.sha256(read_file(file, limit=MAX_TOKENIZER_BYTES)).hexdigest()
    except FileNotFoundError:
        # A folder without tokenizer.json leaves nothing to compare with.
        return
    except OSError as error:
        raise ConfigError(f"model_from: {file}: {error.strerror}") from error
    if digest != made_with:
        raise ConfigError(
            f"data.source: its shards were made with a tokenizer of SHA-256 {made_with}, and"
            f" {file} has {digest}; tokenize again with that file, or name the shards' own"
            " tokenizer.json in data.tokenizer where both give the same tokens"
        )
