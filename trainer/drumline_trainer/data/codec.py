"""Between texts and the tokens of a run's model, as its data is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drumline_contract.buckets.path import AnyPath
from drumline_contract.config import ConfigError, TrainerConfig
from drumline_contract.shapes.hugging_face import model_folder
from drumline_trainer.data.records.template_files import chat_templates_of, has_templates
from drumline_trainer.data.records.tokenizer import TOKENIZER_FILE, LoadedTokenizer

_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec:
    """Between a text and the tokens of a model."""

    encode: Callable[[str], list[int]]
    decode: Callable[[Sequence[int]], str]
    stops: frozenset[int] = frozenset()
    """Tokens after which nothing comes."""


def codec_of(config: TrainerConfig, *, chat: bool | None) -> Codec:
    """Return what the run reads its data with.

    Args:
        config: configuration of the run.
        chat: whether a prompt is what a user says. None: it is if the model has a chat template.

    Raises:
        ConfigError: the tokenizer or the template cannot be read.
    """
    folder = None if config.folder is None else model_folder(config.folder)
    # The order is that of `data.sources`: a configured tokenizer overrides that of the model's
    # folder.
    if config.data.tokenizer is not None:
        file: AnyPath = Path(config.data.tokenizer)
    elif folder is not None and (folder / TOKENIZER_FILE).is_file():
        file = folder / TOKENIZER_FILE
    elif chat:
        raise ConfigError("--chat: this model has no tokenizer, and so no chat template")
    else:
        # A model of bytes has no special tokens, so only the limit ends its answer.
        return Codec(encode=lambda text: list(text.encode()), decode=_of_bytes)
    tokenizer = LoadedTokenizer.of(file)
    frame = tokenizer.frame(file.parent)
    written: Callable[[str], str] = str
    # A template beside the tokenizer means that the model was trained on conversations.
    if chat is None:
        chat = config.data.chat_template is not None or has_templates(file.parent)
    if chat:
        templates = chat_templates_of(
            file.parent, choice=config.data.chat_template, ends=tokenizer.ends(frame)
        )
        # The template writes the special tokens itself. A frame around it would repeat them.
        written = templates.for_tools(None).asked
    return Codec(
        encode=lambda text: tokenizer.encode_text(written(text), frame=None if chat else frame),
        decode=lambda tokens: tokenizer.tokenizer.decode(list(tokens)),
        stops=frame.stops,
    )


def _of_bytes(tokens: Sequence[int]) -> str:
    # Numbers from 256 on are no bytes. A sampled token may be one of them, because vocabularies are
    # padded.
    return bytes(token for token in tokens if token < _BYTES).decode(errors="replace")
