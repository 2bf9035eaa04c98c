"""Small tokenizers with the post-processors, tokens and templates that published ones have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

SENTENCES = [
    "Question: What is the capital of France? Answer: Paris. Yes No Maybe",
    "How can I help you today? I can help you with many things.",
    "Two and two are four. The quick brown fox jumps. user assistant system tool",
] * 20
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_TOKENS = ("<s>", "</s>", "<|im_start|>", "<|im_end|>")


def write_tokenizer(
    folder: Path,
    *,
    special: Sequence[str] = CHATML_TOKENS,
    begin: str | None = None,
    end: str | None = None,
    metaspace: bool = False,
    template: Any = CHATML,
    **config: Any,
) -> Path:
    """Write tokenizer.json and tokenizer_config.json. The post-processor writes `begin`, `end`."""
    folder.mkdir(parents=True, exist_ok=True)
    library = _metaspace(special) if metaspace else _byte_level(special)
    if begin or end:
        single = " ".join(filter(None, (begin, "$A", end)))
        named = sorted({token for token in (begin, end) if token})
        library.post_processor = processors.TemplateProcessing(
            single=single,
            pair=f"{single} {single.replace('$A', '$B')}",
            special_tokens=[(token, library.token_to_id(token)) for token in named],
        )
    library.save(str(folder / "tokenizer.json"))
    written = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": special[0],
        "eos_token": special[1],
        **config,
    }
    if template is not None:
        written["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder


def _byte_level(special: Sequence[str]) -> Tokenizer:
    library = Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(SENTENCES, trainer)
    return library


def _metaspace(special: Sequence[str]) -> Tokenizer:
    """As sentencepiece's models are converted: a space before the first word, bytes for others."""
    model = models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)  # noqa: S106 - a token of text
    library = Tokenizer(model)
    library.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    library.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=[*special, "<unk>", *(f"<0x{n:02X}>" for n in range(256))],
        show_progress=False,
    )
    library.pre_tokenizer = pre_tokenizers.Split(
        "\u2581", "merged_with_next"
    )  # no token of two words
    library.train_from_iterator(SENTENCES, trainer)
    library.pre_tokenizer = None
    return library
