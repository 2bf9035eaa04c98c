"""A Llama of 220 thousand weights that has read a little: what fine-tuning begins from.

Its tokenizer and its weights come of the texts of `instructions`, by this trainer; both libraries
then begin from the same folder.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from drumline_contract.config import ModelConfig
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.initialize import initialize
from tests.libraries.instructions import texts
from tests.unit.trainer.data.records.conversations import MARKED, MARKS, write_lines

TEMPLATE = MARKED + "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"
MODEL = ModelConfig(
    layers=2,
    hidden_size=64,
    ffn_size=176,
    heads=4,
    kv_heads=2,
    vocab_size=1024,
    max_positions=1024,
    tied_embeddings=False,
)
STEPS, BATCH, LENGTH = 240, 8, 128
PROGRAM = (sys.executable, "-m", "drumline_trainer")


def write_small_llama(folder: Path) -> Path:
    """A folder as Hugging Face has them; 250 thousand tokens were read."""
    read = texts()
    write_lines(folder / "texts" / "texts.jsonl", read)
    begun = folder / "begun"
    _write_tokenizer(begun, (str(record["text"]) for record in read))
    module = build_on_meta(MODEL).to_empty(device="cpu")
    initialize(module, seed=3)
    weights = {name: weight.detach() for name, weight in module.named_parameters()}
    export_hugging_face(weights, MODEL, begun)
    settings = {
        "model_from": begun,
        "data.source": folder / "texts",
        "data.pattern": "*.jsonl",
        "data.packing": "stream",
        "data.sequence_length": LENGTH,
        "global_batch_size": BATCH,
        "steps": STEPS,
        "optimizer.warmup_steps": 20,
        "checkpoint.every_steps": STEPS,
    }
    given = [f"--set={name}={value}" for name, value in settings.items()]
    saved = folder / "checkpoints"
    subprocess.run([*PROGRAM, *given, "--checkpoint-folder", str(saved)], check=True)
    target = folder / "model"
    subprocess.run([*PROGRAM, "export", str(saved / f"step-{STEPS:08d}"), str(target)], check=True)
    return target


def _write_tokenizer(folder: Path, read: Iterable[str]) -> None:
    """Byte-level pairs of bytes, and the template's marks."""
    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MODEL.vocab_size,
        special_tokens=MARKS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(read, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin|>",
        "eos_token": "<|end|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
