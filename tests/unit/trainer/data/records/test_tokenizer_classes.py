"""Tokens are those of transformers, which builds some tokenizers anew for their class."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, normalizers, pre_tokenizers

from drumline_contract.shapes.hugging_face.kinds import KINDS
from drumline_trainer.data.records.tokenizer import LoadedTokenizer
from tests.unit.trainer.data.records.tokenizers_by_shape import write_tokenizer

SPACE = "\u2581"
TEXTS = [
    "How can",
    " How can",
    "  How  can",
    "a</s>How can",
    "<s>[INST] How [/INST] can </s>\n<s>you",
    " </s> How",
]
OLD = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
REPLACED = normalizers.Replace(" ", SPACE)
FIRST = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
FORMS: dict[str, tuple[Any, Any]] = {
    "as Llama 2": (OLD, None),
    "as Mistral 3": (None, FIRST),
    "without a first space": (REPLACED, None),
}


def written(
    folder: Path, *, kind: str | None, form: str | None = None, space: bool = False, **config: Any
) -> Path:
    """Write a tokenizer of Llama's or, without a `form`, one of bytes, and the type of a model."""
    write_tokenizer(folder, metaspace=form is not None, special=("<s>", "</s>"), **config)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    if form is None:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    else:
        tokenizer.normalizer, tokenizer.pre_tokenizer = FORMS[form]
    tokenizer.save(str(folder / "tokenizer.json"))
    if kind is not None:
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
    return folder


def differing(folder: Path) -> list[str]:
    """Return the texts of which transformers makes other tokens."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds

    library: Any = AutoTokenizer.from_pretrained(folder)
    ours = LoadedTokenizer.of(folder / "tokenizer.json")
    return [
        text
        for text in TEXTS
        if library(text, add_special_tokens=False)["input_ids"]
        != ours.encode_text(text, frame=None)
    ]


@pytest.mark.parametrize("form", FORMS)
def test_tokens_of_llamas_classes(tmp_path: Path, form: str) -> None:
    names = ("LlamaTokenizer", "LlamaTokenizerFast", "CodeLlamaTokenizer", "TokenizersBackend")
    settings: tuple[dict[str, Any], ...] = (
        {},
        {"legacy": True},
        {"legacy": False},
        {"add_prefix_space": False},
    )
    for number, (name, config) in enumerate(product(names, settings)):
        folder = tmp_path / str(number)
        written(folder, kind="llama", form=form, tokenizer_class=name, **config)
        assert not differing(folder), (name, config)


@pytest.mark.parametrize("kind", [None, *(each.model_type for each in KINDS)])
def test_tokens_of_the_class_of_llama_in_a_model_of_any_type(
    tmp_path: Path, kind: str | None
) -> None:
    if kind != "qwen2":  # such files have bytes
        form = "as Llama 2"
        written(tmp_path / "llama", kind=kind, form=form, tokenizer_class="LlamaTokenizer")
        assert not differing(tmp_path / "llama")
    written(tmp_path / "bytes", kind=kind, tokenizer_class="LlamaTokenizer", space=True)
    assert not differing(tmp_path / "bytes")


@pytest.mark.parametrize("space", [False, True])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("GPT2Tokenizer", "gpt2"),
        ("GPT2TokenizerFast", "smollm3"),
        ("GPT2Tokenizer", "granite"),
        ("GPTNeoXTokenizer", "llama"),
        ("PreTrainedTokenizerFast", "llama"),
    ],
)
def test_a_first_space_of_byte_level_classes(
    tmp_path: Path, name: str, kind: str, space: bool
) -> None:
    settings: tuple[dict[str, Any], ...] = (
        {},
        *({"add_prefix_space": wanted} for wanted in (True, False)),
    )
    for number, config in enumerate(settings):
        folder = tmp_path / str(number)
        written(folder, kind=kind, space=space, tokenizer_class=name, **config)
        assert not differing(folder), config
