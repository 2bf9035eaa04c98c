"""A folder of text, a tokenizer, and the shards that they make."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from drumline_trainer.data.tokenize import TokenizeOptions

END = "<|end|>"
WORDS = [
    "the",
    "drum",
    "line",
    "marches",
    "on",
    "and",
    "on",
    "while",
    "the",
    "bass",
    "keeps",
    "time",
]


def text_of(number: int) -> str:
    """The number-th document, of another length than its neighbours."""
    return " ".join(WORDS[(number * 7 + i) % len(WORDS)] for i in range(3 + number * 5 % 17))


def write_text(folder: Path, *, files: int) -> Path:
    """Text files, one document each."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        (folder / f"{number:03d}.txt").write_text(text_of(number))
    return folder


def write_tokenizer(file: Path) -> Path:
    """Byte-level BPE, as GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([text_of(n) for n in range(20)], trainer)
    tokenizer.save(str(file))
    return file


def order(
    folder: Path, *, files: int = 40, shard_tokens: int = 100, **options: object
) -> TokenizeOptions:
    """What turns `files` texts below `folder` into `folder / shards`."""
    return TokenizeOptions(
        source=write_text(folder / "text", files=files),
        pattern="*.txt",
        tokenizer=write_tokenizer(folder / "tokenizer.json"),
        output=folder / "shards",
        shard_tokens=shard_tokens,
        **{"end_of_text": END, **options},
    )
