"""Open the dataset that `data.source` names; its content decides the kind of dataset."""

from __future__ import annotations

import hashlib
from pathlib import Path

from drumline_trainer.config import ConfigError, DataConfig
from drumline_trainer.config.data import S3_SCHEME
from drumline_trainer.data.corpus import open_corpus
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.data.image_dataset import holds_images, open_images
from drumline_trainer.data.shards.folder_store import FolderShardStore
from drumline_trainer.data.shards.index import INDEX_FILE
from drumline_trainer.data.shards.text import ShardText, open_shards
from drumline_trainer.data.text_dataset import TextDataset, TokenStream


def open_dataset(config: DataConfig, *, seed: int) -> Dataset:
    """Open what `config` names and check that it fills at least one window.

    Raises:
        ConfigError: nothing there, too little, damaged, or made with another tokenizer.
    """
    if not config.source.startswith(S3_SCHEME) and holds_images(Path(config.source)):
        return open_images(Path(config.source), seed=seed)
    text = _open_text(config)
    if text.size <= config.sequence_length:
        text.close()
        raise ConfigError(
            f"data.sequence_length: {text.size} tokens in {config.source} are too few for one"
            f" sequence of {config.sequence_length}; add text or shorten the sequence"
        )
    return TextDataset(
        text=text, sequence_length=config.sequence_length, seed=seed, packing=config.packing
    )


def _open_text(config: DataConfig) -> TokenStream:
    shards = _open_shards(config)
    if shards is None:
        if config.tokenizer is not None:
            raise ConfigError(
                f"data.tokenizer: {config.source} holds no token shards ({INDEX_FILE}); make them"
                f" with python -m drumline_trainer.data.tokenize --source {config.source}"
                f" --tokenizer {config.tokenizer} --output FOLDER, then set data.source to FOLDER"
            )
        return open_corpus(config)
    if config.tokenizer is not None:
        _check_tokenizer(config.tokenizer, shards)
    return shards


def _check_tokenizer(file: str, shards: ShardText) -> None:
    try:
        digest = hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        shards.close()
        raise ConfigError(f"data.tokenizer: {file}: {error.strerror}") from error
    if digest != shards.index.tokenizer_sha256:
        shards.close()
        raise ConfigError(
            f"data.tokenizer: {file} has the SHA-256 {digest}, and the shards of data.source were"
            f" made with {shards.index.tokenizer_sha256}"
        )


def _open_shards(config: DataConfig) -> ShardText | None:
    if config.source.startswith(S3_SCHEME):
        from drumline_trainer.data.shards.s3_store import (  # noqa: PLC0415 - optional: boto3
            S3ShardStore,
        )

        return open_shards(S3ShardStore(config.source, cache_bytes=config.cache_bytes))
    if (Path(config.source) / INDEX_FILE).is_file():
        return open_shards(FolderShardStore(Path(config.source)))
    return None
