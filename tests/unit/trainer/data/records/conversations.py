"""A small instruction set, a chat template and a tokenizer that knows its marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

MARKS = ["<|begin|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<|end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
MARKED = (
    "{{ bos_token }}{%- for message in messages %}{{ '<|' + message['role'] + '|>' }}"
    "{%- if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|end|>' }}"
    "{% endgeneration %}{%- else %}{{ message['content'] + '<|end|>' }}{%- endif %}{%- endfor %}"
)
"""Which says itself what is learned."""
CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Egypt": "Cairo",
    "Cuba": "Havana",
    "Kenya": "Nairobi",
    "Peru": "Lima",
    "Norway": "Oslo",
    "Greece": "Athens",
    "Chile": "Santiago",
    "Iraq": "Baghdad",
}


def conversation(number: int) -> dict[str, Any]:
    """The number-th; every third one has a second turn."""
    names = list(CAPITALS)
    name, other = names[number % len(names)], names[(number * 5 + 1) % len(names)]
    messages = [
        {"role": "user", "content": f"What is the capital of {name}?"},
        {"role": "assistant", "content": f"The capital of {name} is {CAPITALS[name]}."},
    ]
    if number % 3 == 0:
        messages += [
            {"role": "user", "content": f"And of {other}?"},
            {"role": "assistant", "content": f"It is {CAPITALS[other]}."},
        ]
    return {"messages": messages}


def preferences() -> list[dict[str, Any]]:
    """The right capital is preferred to that of the next country."""
    names = list(CAPITALS)
    return [
        {
            "prompt": [{"role": "user", "content": f"What is the capital of {name}?"}],
            "chosen": [{"role": "assistant", "content": f"It is {CAPITALS[name]}."}],
            "rejected": [{"role": "assistant", "content": f"I do not know {CAPITALS[other]}."}],
        }
        for name, other in zip(names * 4, names[1:] + names * 3 + names[:1], strict=True)
    ]


def write_lines(file: Path, records: list[dict[str, Any]]) -> Path:
    """A record a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return file


def write_chat_model(folder: Path, *, template: str | None = TEMPLATE) -> Path:
    """The tokenizer's files of a model folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=MARKS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    sentences = (m["content"] for number in range(12) for m in conversation(number)["messages"])
    tokenizer.train_from_iterator(sentences, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": {"__type": "AddedToken", "content": "<|end|>", "special": True},
        "chat_template": template,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
