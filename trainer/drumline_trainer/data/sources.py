"""Open the dataset that `data.source` names; its content decides the kind of dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from drumline_contract.buckets.path import AnyPath
from drumline_contract.config import ConfigError, DataConfig, ModelConfig
from drumline_contract.config.data import S3_SCHEME, Packing
from drumline_contract.config.mixture import MixturePlan, parsed_mixture
from drumline_contract.config.variants import Family
from drumline_contract.regular_files import read_regular
from drumline_trainer.data.corpus import (
    PYTHON_STDLIB,
    local_source,
    open_corpus,
    refuse_other_formats,
)
from drumline_trainer.data.dataset import Dataset
from drumline_trainer.data.document_dataset import DocumentDataset
from drumline_trainer.data.encoded_image_dataset import open_image_files
from drumline_trainer.data.image_dataset import holds_images, open_images
from drumline_trainer.data.image_files import holds_image_files
from drumline_trainer.data.indexed_text import IndexedText, indexed_files, open_indexed
from drumline_trainer.data.mixture import MixtureDataset, dealt
from drumline_trainer.data.preference_dataset import PreferenceDataset
from drumline_trainer.data.record_text import MemoryText, open_records, records_of
from drumline_trainer.data.records.tokenizer import (
    MAX_TOKENIZER_BYTES,
    TOKENIZER_FILE,
    LoadedTokenizer,
)
from drumline_trainer.data.shards.folder_store import FolderShardStore
from drumline_trainer.data.shards.index import INDEX_FILE
from drumline_trainer.data.shards.s3_store import S3ShardStore
from drumline_trainer.data.shards.text import ShardText, open_shards
from drumline_trainer.data.text_dataset import TextDataset, TokenStream


def open_dataset(
    config: DataConfig,
    *,
    seed: int,
    model_folder: AnyPath | None = None,
    model: ModelConfig | None = None,
) -> Dataset:
    """Open what `config` names and check that it fills at least one window.

    `model_folder` has the tokenizer of records, where `config` names none; encoded images are
    brought to the size that `model` takes.

    Args:
        config: the run's configuration.
        seed: seed of the order.
        model_folder: folder with a tokenizer, used if `config` names none.
        model: image size that encoded images are scaled to.

    Raises:
        ConfigError: nothing there, too little, damaged, or made with another tokenizer.
    """
    config = replace(config, source=local_source(config.source))
    # Order of the checks: a mixture, then images, then text. A wide pattern of text also matches
    # image files.
    if config.mixture is not None:
        return _open_mixture(config, parsed_mixture(config.mixture), seed, model_folder)
    if not config.source.startswith(S3_SCHEME) and holds_images(Path(config.source)):
        return open_images(Path(config.source), seed=seed)
    if model is not None and model.family is Family.VIT and holds_image_files(Path(config.source)):
        return open_image_files(
            Path(config.source), model=model, augmentation=config.augmentation, seed=seed
        )
    text = _open_text(config, model_folder=model_folder)
    # The text may hold threads and connections, so an error in its windows closes it.
    try:
        return _with_notes(
            _windows(text, config, seed=seed, packing=_packing(config, [text])), text
        )
    except ConfigError:
        text.close()
        raise


def _open_mixture(
    config: DataConfig, plan: MixturePlan, seed: int, model_folder: AnyPath | None
) -> MixtureDataset:
    """Open every part by itself; if a part of one is not learned, none is cut anywhere."""
    own = mixture_parts(config)
    # An error in one part closes the parts that are open already. `pop_all` keeps them open on
    # success.
    with ExitStack() as opened:
        texts: list[TokenStream] = []
        for each in own:
            text = _open_text(each, model_folder=model_folder)
            opened.callback(text.close)
            texts.append(text)
        # A batch of pairs counts pairs in its loss, a batch of text counts tokens. One batch cannot
        # have both.
        if any(_holds_pairs(text) for text in texts):
            raise ConfigError(
                "data.mixture: pairs of answers are not mixed; put them into one folder"
            )
        packing = _packing(config, texts)
        parts = tuple(
            # Each part has another seed. Equal seeds would visit parts of equal size in the same
            # order.
            _with_notes(_windows(text, each, seed=seed + number, packing=packing), text)
            for number, (text, each) in enumerate(zip(texts, own, strict=True))
        )
        names = tuple(part.name for part in plan.parts)
        counts = dealt(plan.shares(tuple(part.windows for part in parts)), names=names)
        opened.pop_all()
    examples = tuple(line for part in parts for line in part.examples)
    return MixtureDataset(seed=seed, names=names, parts=parts, counts=counts, examples=examples)


def mixture_parts(config: DataConfig) -> list[DataConfig]:
    """Return the parts of a mixture, each like a data set of its own in a subfolder.

    Raises:
        ConfigError: the mixture cannot be read.
    """
    source = local_source(config.source)
    if config.mixture is None:
        return [replace(config, source=source)]
    source = source.rstrip("/")
    return [
        replace(config, source=f"{source}/{part.name}", mixture=None)
        for part in parsed_mixture(config.mixture).parts
    ]


def _packing(config: DataConfig, texts: Sequence[TokenStream]) -> Packing:
    if config.packing is not None:
        return config.packing
    # Conversations and completions have learned spans, and a cut would separate a question from its
    # answer.
    whole = any(text.learned is not None for text in texts)
    return Packing.WHOLE if whole else Packing.STREAM


def _holds_pairs(text: TokenStream) -> bool:
    return isinstance(text, MemoryText | ShardText) and text.paired


def _with_notes(dataset: Dataset, text: TokenStream) -> Dataset:
    # Only records have remarks. Shards were surveyed by the command that wrote them.
    if not isinstance(text, MemoryText):
        return dataset
    return replace(dataset, remarks=text.notes, examples=text.examples)


def _windows(text: TokenStream, config: DataConfig, *, seed: int, packing: Packing) -> Dataset:
    if packing in (Packing.WHOLE, Packing.PADDED):
        kind = PreferenceDataset if _holds_pairs(text) else DocumentDataset
        return kind.of(
            text,
            sequence_length=config.sequence_length,
            seed=seed,
            together=packing is Packing.WHOLE,
        )
    if text.learned is not None:
        raise ConfigError(
            f"data.packing: {packing} cuts conversations anywhere, and of {config.source} only a"
            " part is learned; use whole or padded"
        )
    # One token more than the sequence is needed, because targets are shifted by one.
    if text.size <= config.sequence_length:
        raise ConfigError(
            f"data.sequence_length: {text.size} tokens in {config.source} are too few for one"
            f" sequence of {config.sequence_length}; add text or shorten the sequence"
        )
    return TextDataset(
        text=text, sequence_length=config.sequence_length, seed=seed, packing=packing
    )


def _open_text(config: DataConfig, *, model_folder: AnyPath | None) -> TokenStream:
    # Shards come first: their index names the tokenizer. Records and Megatron's files need one from
    # the configuration or the model.
    shards = _open_shards(config)
    if shards is not None:
        if config.tokenizer is not None:
            _check_tokenizer(config.tokenizer, shards)
        return shards
    tokenizer = _tokenizer_file(config, model_folder)
    # Megatron's files have fixed suffixes, so they are found before `data.pattern` is applied.
    indices = indexed_files(Path(config.source))
    if indices:
        return _open_indexed(indices, tokenizer_file=tokenizer)
    corpus = open_corpus(config)
    if config.source == PYTHON_STDLIB:
        return corpus
    records = records_of(corpus)
    if records is not None:
        if tokenizer is None:
            raise ConfigError(
                f"data.tokenizer: {config.source} holds records, and no tokenizer.json is known to"
                " read them with; name one, or a model_from that has one"
            )
        return open_records(records, config, tokenizer_file=tokenizer)
    # A tokenizer in the configuration means that tokens are expected. Training on bytes instead
    # would be silent.
    if config.tokenizer is not None:
        raise ConfigError(
            f"data.tokenizer: {config.source} holds no token shards ({INDEX_FILE}); make them"
            f" with python -m drumline_trainer.data.tokenize --source {config.source}"
            f" --tokenizer {config.tokenizer} --output FOLDER, then set data.source to FOLDER"
        )
    # The corpus is read as bytes from here on. A Parquet or gzip file would train without an error.
    refuse_other_formats(corpus)
    return corpus


def _tokenizer_file(config: DataConfig, model_folder: AnyPath | None) -> AnyPath | None:
    if config.tokenizer is not None:
        return Path(config.tokenizer)
    if model_folder is not None and (model_folder / TOKENIZER_FILE).is_file():
        return model_folder / TOKENIZER_FILE
    return None


def _open_indexed(indices: list[Path], *, tokenizer_file: AnyPath | None) -> IndexedText:
    if tokenizer_file is None:
        raise ConfigError(
            f"data.tokenizer: {indices[0]} does not say of which tokenizer its tokens are; name"
            " its tokenizer.json, or a model_from that has it"
        )
    return open_indexed(indices, tokenizer=LoadedTokenizer.of(tokenizer_file))


def _check_tokenizer(file: str, shards: ShardText) -> None:
    try:
        digest = hashlib.sha256(read_regular(Path(file), limit=MAX_TOKENIZER_BYTES)).hexdigest()
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
        return open_shards(S3ShardStore(config.source, cache_bytes=config.cache_bytes))
    if (Path(config.source) / INDEX_FILE).is_file():
        return open_shards(FolderShardStore(Path(config.source)))
    return None
