"""Tokens of records, and which of them are learned, beside TRL and transformers."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest

trl = pytest.importorskip("trl", reason="make test-all WHAT=libraries")

import datasets  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from drumline_contract.config import ConfigError  # noqa: E402
from drumline_trainer.data.record_text import MemoryText  # noqa: E402
from tests.unit.trainer.data.records.published_shapes import SHAPES  # noqa: E402
from tests.unit.trainer.data.records.test_shapes import TWO_TURNS  # noqa: E402
from tests.unit.trainer.data.records.test_tokens import read  # noqa: E402
from tests.unit.trainer.data.records.tokenizers_by_shape import write_tokenizer  # noqa: E402

Document = tuple[list[int], list[int]]
"""Tokens, and places of those that are learned; the first token is no target."""
SHOWN = ("llama 2", "llama 3", "mistral 0.2", "qwen 2.5", "gemma 2", "phi 3", "smollm 2", "olmo 2")
TEXTS = [{"text": "The quick brown fox"}, {"text": " Two"}]
COMPLETIONS = [
    {"prompt": "What is the capital of France?", "completion": " Paris."},
    {"prompt": "Question: Is it so? Answer: ", "completion": "Yes"},
    {"prompt": "The capital of Fr", "completion": "ance"},
    {"prompt": "", "completion": "Maybe"},
]
ANSWERS = [{"prompt": TWO_TURNS[:3], "completion": TWO_TURNS[3:]}]
PAIRS = [
    {"prompt": "Answer: ", "chosen": "Yes", "rejected": "\nNo"},
    {"prompt": "How?", "chosen": " Two", "rejected": " Two and two"},
]
_MARK = r"<[|\uff5c]?[A-Za-z_\u2581]+[|\uff5c]?>|\[/?[A-Z_]+\]"
TEMPLATES = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))


@pytest.fixture(scope="module")
def model() -> Any:
    config = transformers.LlamaConfig(
        vocab_size=1024,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    return transformers.LlamaForCausalLM(config)


def ours(text: MemoryText) -> list[Document]:
    documents: list[Document] = []
    for start, stop in zip([0, *text.ends[:-1].tolist()], text.ends.tolist(), strict=True):
        tokens = text.tokens(start, stop - start).tolist()
        learned = text.learned
        mask = [True] * len(tokens) if learned is None else learned.mask(start, stop).tolist()
        documents.append((tokens, [n for n, counts in enumerate(mask) if counts and n]))
    return documents


def library_of(folder: Path) -> Any:
    library = transformers.AutoTokenizer.from_pretrained(folder)
    library.pad_token = library.eos_token
    return library


def by_sft(model: Any, folder: Path, records: list[Any], **settings: Any) -> list[Document]:
    arguments = trl.SFTConfig(
        output_dir=str(folder / "out"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        max_length=None,
        disable_tqdm=True,
        gradient_checkpointing=False,
        **settings,
    )
    trainer = trl.SFTTrainer(
        model=model,
        processing_class=library_of(folder),
        train_dataset=datasets.Dataset.from_list(records),
        args=arguments,
    )
    documents: list[Document] = []
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        labels = batch["labels"][0].tolist()
        learned = [n for n, label in enumerate(labels) if label != -100 and n]
        documents.append((batch["input_ids"][0].tolist(), learned))
    return documents


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("records", [TEXTS, COMPLETIONS], ids=["texts", "completions"])
def test_texts_are_those_of_sft(model: Any, tmp_path: Path, name: str, records: list[Any]) -> None:
    folder = SHAPES[name].write(tmp_path)
    assert ours(read(folder, records)) == by_sft(model, folder, records)


@pytest.mark.parametrize("name", SHOWN)
def test_completions_of_messages_begin_as_in_sft(model: Any, tmp_path: Path, name: str) -> None:
    folder = SHAPES[name].write(tmp_path)
    [(tokens, learned)] = ours(read(folder, ANSWERS))
    [(expected, places)] = by_sft(model, folder, ANSWERS)
    assert tokens == expected
    assert learned == places[: len(learned)]
    rest = library_of(folder).decode([tokens[n] for n in places[len(learned) :]])
    assert rest.strip() in ("", "<|endoftext|>")  # what follows the end of the turn


@pytest.mark.parametrize("name", SHOWN)
def test_pairs_are_those_of_dpo(model: Any, tmp_path: Path, name: str) -> None:
    folder = SHAPES[name].write(tmp_path)
    documents = ours(read(folder, PAIRS))
    arguments = trl.DPOConfig(
        output_dir=str(folder / "out"), use_cpu=True, bf16=False, report_to=[], max_length=None
    )
    trainer = trl.DPOTrainer(
        model=model,
        ref_model=copy.deepcopy(model),
        processing_class=library_of(folder),
        train_dataset=datasets.Dataset.from_list(PAIRS),
        args=arguments,
    )
    for number, row in enumerate(trainer.train_dataset):
        batch = trainer.data_collator([row])
        for side in range(2):
            tokens, learned = documents[2 * number + side]
            count = int(batch["attention_mask"][side].sum())
            assert batch["input_ids"][side][:count].tolist() == tokens
            mask = torch.nonzero(batch["completion_mask"][side]).flatten().tolist()
            assert mask == learned


def write_for(template: Path, folder: Path) -> Path:
    """A tokenizer that knows the marks of a template. The clock stands still in ours alone."""
    source = re.sub(r"strftime_now *\([^)]*\)", "'2025-01-01'", template.read_text())
    marks = dict.fromkeys(re.findall(_MARK, source))
    special = ("<s>", "</s>", *marks)
    return write_tokenizer(folder, special=special, template=source)


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_published_templates_give_the_tokens_and_the_masks_of_transformers(
    tmp_path: Path, template: Path
) -> None:
    folder = write_for(template, tmp_path)
    library = library_of(folder)
    marked = template.stem.endswith("_training")
    try:
        theirs = library.apply_chat_template(
            TWO_TURNS, return_assistant_tokens_mask=marked, return_dict=True
        )
    except Exception as error:  # noqa: BLE001 - a template for parts of images, say
        pytest.skip(f"refused by transformers: {error}")
    if TWO_TURNS[0]["content"] not in library.decode(
        theirs["input_ids"]
    ):  # it accepts only lists of parts
        with pytest.raises(ConfigError, match="does not write messages of 'user'"):
            read(folder, [{"messages": TWO_TURNS}])
        return
    if template.stem == "glm4moe":  # an answer ends with the marker of the next turn
        with pytest.raises(ConfigError, match="none ends in a stop token"):
            read(folder, [{"messages": TWO_TURNS}])
        return
    [(tokens, learned)] = ours(read(folder, [{"messages": TWO_TURNS}]))
    assert tokens == theirs["input_ids"]
    if marked:
        assert learned == [n for n, counts in enumerate(theirs["assistant_masks"]) if counts and n]


TOOL = {"type": "function", "function": {"name": "weather", "description": "of a city"}}
CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": {"c": "é"}}}
USER = {"role": "user", "content": "Two?"}
ANSWER = {"role": "assistant", "content": " four\n"}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "a system": [{"role": "system", "content": "Be brief."}, USER, ANSWER],
    "a system in the middle": [USER, ANSWER, {"role": "system", "content": "So."}, USER, ANSWER],
    "an empty answer": [USER, {**ANSWER, "content": ""}, USER, ANSWER],
    "a question at the end": [USER, ANSWER, USER],
    "two answers": [USER, ANSWER, ANSWER],
    "the assistant begins": [ANSWER, USER, ANSWER],
    "thoughts in the text": [USER, {**ANSWER, "content": "<think>\nhm\n</think>\n\nfour"}],
    "thoughts": [USER, {**ANSWER, "reasoning_content": "hm"}],
    "a call": [
        USER,
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "20", "name": "weather", "tool_call_id": "a"},
        ANSWER,
    ],
}


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_conversations_of_every_shape_are_those_of_transformers_or_refused(
    tmp_path: Path, template: Path
) -> None:
    folder = write_for(template, tmp_path)
    library = library_of(folder)
    marked = template.stem.endswith("_training")
    for name, messages in CONVERSATIONS.items():
        tools = [TOOL] if name == "a call" else None
        record = {"messages": messages, **({"tools": tools} if tools else {})}
        try:
            theirs = library.apply_chat_template(
                messages, tools=tools, return_assistant_tokens_mask=marked, return_dict=True
            )
        except Exception:  # noqa: BLE001, S112 - a template may raise any error
            continue
        try:
            [(tokens, learned)] = ours(read(folder, [record]))
        except ConfigError:
            continue
        assert tokens == theirs["input_ids"], name
        if marked:
            expected = [n for n, counts in enumerate(theirs["assistant_masks"]) if counts and n]
            assert learned == expected, name
