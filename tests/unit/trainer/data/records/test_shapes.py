"""Records by the shapes of published tokenizers, beside the library transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drumline_trainer.data.record_text import MemoryText
from tests.unit.trainer.data.records.published_shapes import SHAPES, Shape
from tests.unit.trainer.data.records.test_tokens import CALL, TOOLS, document, documents, read

TWO_TURNS = [
    {"role": "user", "content": "What is the capital of France?"},
    {"role": "assistant", "content": "Paris."},
    {"role": "user", "content": "Two and two?"},
    {"role": "assistant", "content": "four. Yes"},
]
CALLING = [
    *TWO_TURNS[:1],
    {"role": "assistant", "tool_calls": [{"id": "abcdefghi", **CALL}]},
    {"role": "tool", "name": "weather", "tool_call_id": "abcdefghi", "content": "Two"},
    TWO_TURNS[1],
]


def library_of(model: Path) -> Any:
    from transformers import AutoTokenizer  # noqa: PLC0415 - seconds

    return AutoTokenizer.from_pretrained(model)


def tokens_of(text: MemoryText) -> list[list[int]]:
    starts = [0, *text.ends[:-1].tolist()]
    pairs = zip(starts, text.ends.tolist(), strict=True)
    return [text.tokens(start, stop - start).tolist() for start, stop in pairs]


@pytest.mark.extended(keep=6)
@pytest.mark.parametrize("name", SHAPES)
def test_tokens_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    model = shape.write(tmp_path)
    library = library_of(model)
    texts = ["The quick brown fox", " Two  and\ntwo", "How?"]
    [*plain] = tokens_of(read(model, [{"text": text} for text in texts]))
    for text, ours in zip(texts, plain, strict=True):
        theirs = library(text).input_ids
        if not shape.end:
            theirs = [*theirs, library.eos_token_id]
        assert ours == theirs
    record: dict[str, Any] = {"messages": TWO_TURNS}
    [ours] = tokens_of(read(model, [record]))
    assert ours == library.apply_chat_template(TWO_TURNS).input_ids
    asked = library.apply_chat_template(TWO_TURNS[:1], add_generation_prompt=True).input_ids
    [after] = tokens_of(read(model, [{"prompt": TWO_TURNS[:1], "completion": TWO_TURNS[1:2]}]))
    assert after == library.apply_chat_template(TWO_TURNS[:2]).input_ids
    assert asked[:2] == after[:2]


@pytest.mark.extended(keep=6)
@pytest.mark.parametrize("name", SHAPES)
def test_answers_and_their_ends_are_learned_and_nothing_else(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    model = shape.write(tmp_path)
    notes = read(model, [{"messages": TWO_TURNS}]).notes
    assert any("stop token" in note for note in notes) is (shape.past is not None)
    past = shape.closing if shape.past is None else shape.past
    last = f"four. Yes{shape.closing}"
    _, learned = document(model, {"messages": TWO_TURNS})
    assert plain(learned, shape) == plain(f"Paris.{past}{last}", shape)
    pair = {"prompt": TWO_TURNS[:3], "completion": TWO_TURNS[3:]}
    assert plain(document(model, pair)[1], shape) == plain(last, shape)
    off = [{**message, "weight": 0} for message in TWO_TURNS[:2]]
    assert document(model, {"messages": [*off, *TWO_TURNS[2:]]}) == document(model, pair)


def plain(learned: str, shape: Shape) -> str:
    """Without the words before an answer, and without spaces."""
    return "".join(learned.replace(shape.before, "").split())


@pytest.mark.parametrize("name", [name for name, shape in SHAPES.items() if shape.tools])
def test_calls_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    model = shape.write(tmp_path)
    library = library_of(model)
    coded = {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}
    strings = [*CALLING]
    strings[1] = {
        "role": "assistant",
        "tool_calls": [{**CALLING[1]["tool_calls"][0], "function": coded}],
    }
    records = [
        {"messages": CALLING, "tools": TOOLS},
        {"messages": json.dumps(strings), "tools": json.dumps(TOOLS)},
    ]
    text = read(model, records)
    wanted = strings if name == "deepseek v3" else CALLING  # which writes arguments as they are
    expected = library.apply_chat_template(wanted, tools=TOOLS).input_ids
    assert tokens_of(text) == [expected, expected]
    for _, learned in documents(text, model):
        assert "weather" in learned
        assert learned.count("capital") == 0
