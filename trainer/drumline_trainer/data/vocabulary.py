"""Check that the tokens of a data set belong to the model's vocabulary.

Numbers below the vocabulary's size fit any model of that size. Another tokenizer's tokens, or bytes
instead of tokens, train without an error and have another meaning in every position.
"""

from __future__ import annotations

import hashlib
from typing import Final

from drumline_contract.buckets.path import AnyPath, read_file
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.data.document_dataset import DocumentDataset
from drumline_trainer.data.mixture import MixtureDataset
from drumline_trainer.data.records.tokenizer import MAX_TOKENIZER_BYTES, TOKENIZER_FILE
from drumline_trainer.data.text_dataset import TextDataset

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
