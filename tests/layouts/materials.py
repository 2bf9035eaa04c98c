"""What the cells of the matrix read from disk, made when it is first asked for.

A configuration names it by a path below `/$`, so that a layout can be checked before there is any
file: `/$chats` is the folder of conversations, `/$base/tokenizer.json` a file of the base model.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch

from drumline_contract.config import LoraConfig, ModelConfig, TrainerConfig
from drumline_trainer.adapters.peft import write_peft
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.hugging_face import export_hugging_face
from drumline_trainer.models.initialize import initialize
from tests.layouts.cases import plain
from tests.layouts.images import write_images, write_photos
from tests.unit.trainer.data.records.conversations import (
    TEMPLATE,
    conversation,
    preferences,
    write_chat_model,
    write_lines,
)

SIGN: Final = "/$"
TOKENS: Final = 320
"""Of the tokenizer."""
ADAPTERS: Final[dict[str, Any]] = {"rank": 4, "alpha": 8.0, "targets": "query,value,up"}
"""Those that are stored beside the base."""
DOCUMENTS: Final = 96


class Materials:
    """A folder that fills as cells ask."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._makers = {
            "records": self._records,
            "chats": self._chats,
            "pairs": self._pairs,
            "mixed": self._mixed,
            "base": self._base,
            "adapters": self._adapters,
            "images": write_images,
            "photos": write_photos,
            "spill": Path.mkdir,
        }

    def filled(self, changes: dict[str, Any]) -> dict[str, Any]:
        """The same changes with paths that exist."""
        return {key: self._filled(value) for key, value in changes.items()}

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return self.filled(value)
        if not isinstance(value, str) or not value.startswith(SIGN):
            return value
        name, _, below = value.removeprefix(SIGN).partition("/")
        folder = self._folder / name
        if not folder.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._makers[name](folder)
        return str(folder / below)

    def _records(self, folder: Path) -> None:
        texts = [conversation(number)["messages"] for number in range(DOCUMENTS)]
        lines = [{"body": " ".join(turn["content"] for turn in turns)} for turns in texts]
        write_lines(folder / "train.jsonl", lines)

    def _chats(self, folder: Path) -> None:
        write_lines(folder / "train.jsonl", [conversation(n) for n in range(DOCUMENTS)])
        write_lines(folder / "held.jsonl", [conversation(n) for n in range(DOCUMENTS, 108)])
        (folder / "template.jinja").write_text(TEMPLATE)

    def _pairs(self, folder: Path) -> None:
        write_lines(folder / "train.jsonl", preferences())

    def _mixed(self, folder: Path) -> None:
        for name, step in (("even", 2), ("odd", 3)):
            (folder / name).mkdir(parents=True)
            text = bytes(i * i * step % 251 for i in range(4000))
            (folder / name / "text.txt").write_bytes(text)

    def _base(self, folder: Path) -> None:
        write_chat_model(folder)
        config = model_of_base()
        module = build_on_meta(config).to_empty(device="cpu")
        initialize(module, seed=3)
        weights = {name: weight.detach() for name, weight in module.named_parameters()}
        export_hugging_face(weights, config, folder)

    def _adapters(self, folder: Path) -> None:
        base = Path(self._filled(f"{SIGN}base"))
        lora, model = LoraConfig(**ADAPTERS), model_of_base()
        random = torch.Generator().manual_seed(5)
        tensors: dict[str, torch.Tensor] = {}
        for name, parameter in build_on_meta(model).named_parameters():
            layer = name.removesuffix(".weight")
            if layer.rpartition(".")[2] in lora.projections:
                rows, columns = parameter.shape
                for part, shape in (("a", (lora.rank, columns)), ("b", (rows, lora.rank))):
                    tensor = 0.1 * torch.randn(shape, generator=random)
                    tensors[f"{layer}.lora_{part}"] = tensor
        write_peft(tensors, folder, lora=lora, model=model, base=base, dtype=torch.float32)


def model_of_base() -> ModelConfig:
    """Two layers, as `untied` with the tokenizer's vocabulary."""
    raw = plain("untied")
    return TrainerConfig.from_dict({"model": {**raw["model"], "vocab_size": TOKENS}}).model
