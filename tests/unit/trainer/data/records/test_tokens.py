"""Tokens of records: what a tokenizer writes, what is learned, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from drumline_contract.config import ConfigError, DataConfig, TrainerConfig
from drumline_contract.config.data import Packing
from drumline_trainer.data.codec import codec_of
from drumline_trainer.data.corpus import open_corpus
from drumline_trainer.data.record_text import MemoryText, open_records, records_of
from drumline_trainer.data.records.answer_spans import Ends
from drumline_trainer.data.records.chat_template import ChatTemplate
from drumline_trainer.data.shards.folder_store import FolderShardStore
from drumline_trainer.data.shards.text import open_shards
from drumline_trainer.data.sources import open_dataset
from drumline_trainer.data.tokenize import TokenizeOptions, tokenize
from tests.unit.trainer.data.records.conversations import write_lines
from tests.unit.trainer.data.records.tokenizers_by_shape import (
    CHATML,
    CHATML_TOKENS,
    write_tokenizer,
)

USER = {"role": "user", "content": "Two?"}
TWO_TURNS = {
    "messages": [
        USER,
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "Yes?"},
        {"role": "assistant", "content": "No"},
    ]
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a city"}}]
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
CALLS = (
    "{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif -%}"
    "{%- for message in messages %}<|im_start|>{{ message.role + '\n' }}"
    "{%- if message.content %}{{ message.content }}{% endif %}"
    "{%- if message.tool_calls %}{% for call in message.tool_calls %}"
    "<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def read(folder: Path, records: list[dict[str, Any]], **config: Any) -> MemoryText:
    source = write_lines(folder / "data" / "records.jsonl", records)
    return read_file(source, folder, **config)


def read_file(source: Path, model: Path, **config: Any) -> MemoryText:
    given = DataConfig(source=str(source.parent), pattern=source.name, **config)
    return open_records(open_corpus(given), given, tokenizer_file=model / "tokenizer.json")


def documents(text: MemoryText, model: Path) -> list[tuple[str, str]]:
    """Text of each document, and of what is learned of it, the first token included."""
    library = Tokenizer.from_file(str(model / "tokenizer.json"))
    pairs, start = [], 0
    for end in text.ends.tolist():
        tokens = text.tokens(start, end - start)
        mask = np.ones(len(tokens), bool)
        if text.learned is not None:
            mask = text.learned.mask(start, end)
        pair = (
            library.decode(each.tolist(), skip_special_tokens=False)
            for each in (tokens, tokens[mask])
        )
        pairs.append(tuple(pair))
        start = end
    return pairs  # pyright: ignore[reportReturnType] - pairs


def document(folder: Path, record: dict[str, Any], **config: Any) -> tuple[str, str]:
    [pairs] = documents(read(folder, [record], **config), folder)
    return pairs


FRAMES: dict[str, tuple[dict[str, Any], str, str]] = {
    "begins texts": ({"begin": "<s>"}, "<s>", "</s>"),
    "names a begin token alone": ({}, "", "</s>"),
    "ends texts": ({"begin": "<s>", "end": "</s>"}, "<s>", "</s>"),
    "ends texts by another token": ({"end": "<|im_end|>"}, "", "<|im_end|>"),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_texts_have_the_tokens_of_the_post_processor_once(tmp_path: Path, frame: str) -> None:
    settings, begin, end = FRAMES[frame]
    model = write_tokenizer(tmp_path, **settings)
    whole = f"{begin}The fox{end}"
    for text in ("The fox", f"{begin}The fox", f"The fox{end}", whole):
        assert document(model, {"text": text}) == (whole, whole)
        pair = {"prompt": f"{begin}What?", "completion": text.removeprefix(begin)}
        assert document(model, pair) == (f"{begin}What?The fox{end}", f"The fox{end}")


@pytest.mark.parametrize("frame", FRAMES)
def test_shards_and_generate_read_texts_as_records_do(tmp_path: Path, frame: str) -> None:
    model = write_tokenizer(tmp_path, **FRAMES[frame][0])
    records = [{"text": "The fox"}, {"text": "Two and two"}]
    text = read(model, records)
    options = TokenizeOptions(
        source=model / "data",
        pattern="*.jsonl",
        tokenizer=model / "tokenizer.json",
        output=tmp_path / "shards",
    )
    tokenize(options, print_line=lambda _: None)
    shards = open_shards(FolderShardStore(tmp_path / "shards"))
    assert shards.tokens(0, shards.size).tolist() == text.all_tokens.tolist()
    config = TrainerConfig.from_dict({"data": {"tokenizer": str(model / "tokenizer.json")}})
    asked = codec_of(config, chat=False).encode("The fox")
    closing = len(FRAMES[frame][2]) > 0
    assert asked == text.all_tokens[: text.ends[0] - closing].tolist()


def test_the_settings_of_the_model_name_an_end_where_the_tokenizer_names_none(
    tmp_path: Path,
) -> None:
    model = write_tokenizer(tmp_path, eos_token=None)
    with pytest.raises(ConfigError, match="none ends in a stop token"):
        document(model, {"prompt": "What?", "completion": "Yes"})
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 1]}))
    assert document(model, {"prompt": "What?", "completion": "Yes"})[1] == "Yes<|im_end|>"


@pytest.mark.parametrize(
    ("prompt", "completion", "learned"),
    [
        ("Answer: ", "Yes", " Yes</s>"),
        ("Answer:", " Yes", " Yes</s>"),
        ("Answer", "", "</s>"),
        ("", "Yes", "Yes</s>"),
        ("The capital of Fr", "ance", " France</s>"),
    ],
)
def test_a_token_across_the_boundary_is_learned(
    tmp_path: Path, prompt: str, completion: str, learned: str
) -> None:
    pairs = document(write_tokenizer(tmp_path), {"prompt": prompt, "completion": completion})
    assert pairs == (f"{prompt}{completion}</s>", learned)


def test_both_sides_of_a_pair_begin_where_either_does(tmp_path: Path) -> None:
    record = {"prompt": "Answer: ", "chosen": "Yes", "rejected": "\nNo"}
    text = read(write_tokenizer(tmp_path), [record])
    assert [part for _, part in documents(text, tmp_path)] == [" Yes</s>", " \nNo</s>"]


def test_a_conversation_that_the_assistant_begins(tmp_path: Path) -> None:
    default = (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nBe brief<|im_end|>\n{% endif %}"
    )
    model = write_tokenizer(tmp_path, template=default + CHATML)
    record = {"messages": [{"role": "assistant", "content": "How?"}, *TWO_TURNS["messages"]]}
    assert document(model, record)[1] == "How?<|im_end|>four<|im_end|>No<|im_end|>"


def test_an_answer_that_shares_a_letter_with_the_words_that_ask(tmp_path: Path) -> None:
    asks = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    model = write_tokenizer(tmp_path, template=asks)
    for answer in ("<t>four", "<tool_call>", "four", "<think>\nHm"):
        record = {"messages": [USER, {"role": "assistant", "content": answer}]}
        own = answer.removeprefix("<think>\n")  # which is asked with, and not the model's to say
        assert document(model, record)[1] == f"{own}<|im_end|>"


def test_a_completion_of_messages_alone_is_learned(tmp_path: Path) -> None:
    first, second = TWO_TURNS["messages"][:3], TWO_TURNS["messages"][3:]
    model = write_tokenizer(tmp_path)
    whole, learned = document(model, {"prompt": first, "completion": second})
    assert (whole, learned) == (document(model, TWO_TURNS)[0], "No<|im_end|>")
    off = [{**m, "weight": 0} if m["role"] == "assistant" else m for m in first]
    assert document(model, {"messages": [*off, *second]}) == (whole, learned)


MARKED = CHATML.replace(
    "{{ message['content'] }}<|im_end|>\n",
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|im_end|>"
    "{% endgeneration %}\n{% else %}{{ message['content'] }}<|im_end|>\n{% endif %}",
)


def test_marks_of_a_template_heed_the_flags_of_a_message(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path, template=MARKED)
    plain = document(model, TWO_TURNS)
    assert plain[1] == "four<|im_end|>No<|im_end|>"
    off = [dict(message) for message in TWO_TURNS["messages"]]
    off[1]["train"] = False
    assert document(model, {"messages": off}) == (plain[0], "No<|im_end|>")
    asked = {"prompt": TWO_TURNS["messages"][:3], "completion": TWO_TURNS["messages"][3:]}
    assert document(model, asked) == (plain[0], "No<|im_end|>")


def test_marks_may_hold_white_space_after_the_end(tmp_path: Path) -> None:
    wide = MARKED.replace("{% endgeneration %}\n", "\n{% endgeneration %}")
    model = write_tokenizer(tmp_path, template=wide)
    text = read(model, [TWO_TURNS])
    assert not text.notes
    assert documents(text, model)[0][1] == "four<|im_end|>\nNo<|im_end|>\n"


ENDLESS: dict[str, str] = {
    "the next marker": "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
    "nothing": "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}",
    "marks without it": MARKED.replace("<|im_end|>{% endgen", "{% endgen").replace(
        "{% endgeneration %}\n", "{% endgeneration %}<|im_end|>\n"
    ),
}


@pytest.mark.parametrize("end", ENDLESS)
def test_a_template_that_ends_no_answer_is_refused(tmp_path: Path, end: str) -> None:
    model = write_tokenizer(tmp_path, template=ENDLESS[end])
    with pytest.raises(ConfigError, match="none ends in a stop token"):
        read(model, [TWO_TURNS])
    marker = "<|user|>"
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [4]}))
    if end == "the next marker":  # a model that stops at it learns it
        known = (*CHATML_TOKENS, marker)
        write_tokenizer(tmp_path, special=known, template=ENDLESS[end])
        text = read(model, [TWO_TURNS])
        assert documents(text, model)[0][1] == f"four{marker}No"
        assert any("1 of 1 documents" in note for note in text.notes)


def test_an_end_that_only_the_last_answer_lacks_is_counted(tmp_path: Path) -> None:
    template = CHATML.replace("<|im_end|>\n", "{% if not loop.last %}<|im_end|>\n{% endif %}")
    model = write_tokenizer(tmp_path, template=template, eos_token="<|im_end|>")  # noqa: S106 - a token of text
    followed = {"messages": [*TWO_TURNS["messages"], USER]}
    text = read(model, [TWO_TURNS, followed])
    [note] = text.notes
    assert "1 of 2 documents: an answer does not end" in note
    assert documents(text, model)[1][1] == "four<|im_end|>No<|im_end|>"


def test_nulls_of_columns_are_dropped_at_all_depths(tmp_path: Path) -> None:
    def calling(**arguments: str) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        return {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]}

    model = write_tokenizer(tmp_path, template=CALLS)
    records = [calling(city="Paris"), calling(day="Yes"), TWO_TURNS]
    lines = documents(read(model, records), model)
    table = tmp_path / "columns" / "a.parquet"
    table.parent.mkdir()
    pq.write_table(pa.Table.from_pylist(records), table)
    assert documents(read_file(table, model), model) == lines
    assert lines[0][1] == '<tool_call>{"city": "Paris"}</tool_call><|im_end|>'


def test_a_template_for_tools_is_chosen_where_there_are_tools(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": CHATML},
        {"name": "tool_use", "template": CALLS},
        {"name": "rag", "template": CHATML.replace("<|im_start|>", "<|im_start|>rag ")},
    ]
    model = write_tokenizer(tmp_path, template=named)
    record = {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}
    whole, learned = document(model, {**record, "tools": json.dumps(TOOLS)})
    assert whole.startswith(f"<tools>{json.dumps(TOOLS)}</tools>")
    assert learned == '<tool_call>{"city": "Paris"}</tool_call><|im_end|>'
    assert "rag user" in document(model, TWO_TURNS, chat_template="rag")[0]
    with pytest.raises(ConfigError, match="does not write 'tool_calls'"):
        document(model, record)
    with pytest.raises(ConfigError, match="has no template 'tools'; it has default, rag, tool_use"):
        document(model, TWO_TURNS, chat_template="tools")


def test_a_template_that_wants_arguments_as_text_gets_them(tmp_path: Path) -> None:
    wants_text = CALLS.replace("call.function.arguments | tojson", "'' + call.function.arguments")
    model = write_tokenizer(tmp_path, template=wants_text)
    record = {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]}
    assert document(model, record)[1] == '<tool_call>{"city": "Paris"}</tool_call><|im_end|>'


DAMAGED = {
    "a lone surrogate": ('{"text": "The \\ud83d fox"}', "half of a surrogate pair"),
    "a surrogate in a message": (
        '{"messages": [{"role": "assistant", "content": "\\udc00"}]}',
        "half of a surrogate pair",
    ),
    "a null": ('{"text": null}', "neither a text"),
    "a nested list": ('{"messages": [[{"role": "user"}]]}', "message 1 is not an object"),
    "deep nesting": (
        '{"messages": [{"role": "user", "content": "a"}], "tools": ' + "[" * 900 + "]" * 900 + "}",
        "not an object",
    ),
    "no JSON inside": ('{"messages": "[{"}', "not JSON"),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_record_is_refused_with_its_place(tmp_path: Path, damage: str) -> None:
    line, words = DAMAGED[damage]
    model = write_tokenizer(tmp_path)
    source = tmp_path / "data" / "a.jsonl"
    source.parent.mkdir()
    source.write_text(f"{line}\n")
    with pytest.raises(ConfigError, match=words) as caught:
        read_file(source, model)
    assert "a.jsonl" in str(caught.value)


HOSTILE = {
    "a division": "{{ 1 // 0 }}",
    "a recursion": "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    "a repetition": "{{ 'a' * 20000000000 }}",
    "a list of it": "{{ (messages * 2000000000) | length }}",
    "a power": "{{ 10 ** 100000000 }}",
    "an overflow": "{{ 2.0 ** 64 ** 64 }}",
    "a width": "{{ 'a'.ljust(20000000000) }}",
    "a filter's width": "{{ 'a' | center(20000000000) }}",
    "widths of a list": "{{ ['a'] | map('center', 20000000000) | list | length }}",
    "a format's width": "{{ '%20000000000s' % 'a' }}",
    "a format's argument": "{{ '%*s' % (20000000000, 'a') }}",
    "a formatted width": "{{ '{:20000000000}'.format('a') }}",
    "a nested width": "{{ '{:{w}}'.format('a', w=20000000000) }}",
    "the filter for formats": "{{ '%020000000000d' | format(1) }}",
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_template_that_fails_is_refused_with_the_place(tmp_path: Path, attack: str) -> None:
    model = write_tokenizer(tmp_path, template=HOSTILE[attack])
    with pytest.raises(ConfigError, match=r"records\.jsonl at byte 0: the chat template refuses"):
        read(model, [TWO_TURNS])


def test_numbers_of_a_record_may_be_large_in_calls_and_formats() -> None:
    source = (
        "{% macro show(n) %}{{ n }}{% endmacro %}{{ show(1795946486750) }}"
        "{{ '%d at %5.1f' % (1795946486750, 2.5) }}{{ '{} {:>6}'.format(20260101, 'a') }}"
        "{{ '%s' | format(1795946486750) }}{{ 'a-b'.replace('-', '%20000000000s') }}"
    )
    made = ChatTemplate.of(source, tokens={}, ends=Ends())
    assert made.asked("?").count("1795946486750") == 3


def test_a_template_that_is_too_deep_to_compile_is_refused(tmp_path: Path) -> None:
    deep = "{% if a %}" * 4000 + "{% endif %}" * 4000
    model = write_tokenizer(tmp_path, template=deep)
    with pytest.raises(ConfigError, match=r"data\.chat_template: is no template"):
        read(model, [TWO_TURNS])


def test_held_out_records_are_read_as_the_others(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path, begin="<s>")
    read(model, [{"prompt": "What?", "completion": "Yes"}] * 4)
    config = DataConfig(source=str(model / "data"), pattern="*.jsonl", packing=Packing.PADDED)
    dataset = open_dataset(config, seed=1, model_folder=model).without(1)
    held, rest = dataset.held_out_part().batch(range(1)), dataset.batch(range(1))
    assert np.array_equal(held.inputs, rest.inputs)
    assert np.array_equal(held.targets, rest.targets)


def test_which_fields_count_is_said_before_the_first_step(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    read(model, [{**TWO_TURNS, "text": "The fox"}])
    config = DataConfig(source=str(model / "data"), pattern="*.jsonl")
    dataset = open_dataset(config, seed=1, model_folder=model)
    assert any("'messages' is learned" in note for note in dataset.notes())
    shown = "\n".join(dataset.examples)
    assert "records.jsonl at byte 0" in shown
    assert "[[f|our|<|im_end|>]]" in shown


def test_tools_that_the_template_leaves_out_are_said(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    read(model, [{**TWO_TURNS, "tools": [{"type": "function", "function": {"name": "add"}}]}])
    config = DataConfig(source=str(model / "data"), pattern="*.jsonl")
    notes = open_dataset(config, seed=1, model_folder=model).notes()
    assert any("1 records have 'tools', which the chat template does not" in each for each in notes)


CHAT = {"messages": [USER, {"role": "assistant", "content": "four"}]}
TALK = "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\nfour<|im_end|>\n"


@pytest.mark.parametrize("listed", [False, True], ids=["named", "in added_tokens_decoder"])
def test_a_token_that_the_config_alone_names_is_one_token(tmp_path: Path, *, listed: bool) -> None:
    entry = {"content": "<|im_end|>", "normalized": False, "special": True}
    more = {"added_tokens_decoder": {"3": entry}} if listed else {}
    model = write_tokenizer(tmp_path, **{"eos_token": "<|im_end|>", **more})
    file = model / "tokenizer.json"
    raw = json.loads(file.read_text())
    raw["added_tokens"] = [each for each in raw["added_tokens"] if each["content"] != "<|im_end|>"]
    file.write_text(json.dumps(raw))
    text = read(model, [CHAT])
    number = Tokenizer.from_file(str(file)).token_to_id("<|im_end|>")
    assert text.all_tokens.tolist().count(number) == 2
    assert document(model, {"text": "The fox"})[1] == "The fox<|im_end|>"


def test_flags_of_added_tokens_are_those_of_the_config(tmp_path: Path) -> None:
    entry = {"content": "<|im_end|>", "rstrip": True, "normalized": False, "special": True}
    model = write_tokenizer(tmp_path, added_tokens_decoder={"3": entry})
    assert document(model, {"text": "Two<|im_end|>\nfour"})[0] == "Two<|im_end|>four</s>"


def test_the_older_file_names_tokens_where_the_newer_one_lists_none(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path)
    (model / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    assert document(model, {"text": "The fox"})[1] == "The fox<|im_end|>"
    write_tokenizer(tmp_path, added_tokens_decoder={})
    assert document(model, {"text": "The fox"})[1] == "The fox</s>"


@pytest.mark.parametrize(
    "config",
    [{"turn_token": "<|im_end|>"}, {"extra_special_tokens": {"turn_token": "<|im_end|>"}}],
    ids=str,
)
def test_a_template_has_the_tokens_that_a_model_names_itself(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    template = CHATML.replace("<|im_end|>", "{{ turn_token }}")
    model = write_tokenizer(tmp_path, template=template, **config)
    assert document(model, CHAT) == (TALK, "four<|im_end|>")


def test_templates_may_be_an_object(tmp_path: Path) -> None:
    model = write_tokenizer(tmp_path, template={"default": CHATML, "tool_use": "no"})
    assert document(model, CHAT) == (TALK, "four<|im_end|>")


@pytest.mark.parametrize(
    "written", ["{{ call.arguments }}", "{{ '' ~ call.arguments }}", "{{ call.arguments|string }}"]
)
def test_arguments_that_a_template_writes_as_they_are_stay_json(
    tmp_path: Path, written: str
) -> None:
    calls = "{% for call in message.tool_calls or [] %}" + written + "{% endfor %}"
    template = CHATML.replace("<|im_end|>", calls + "<|im_end|>")
    model = write_tokenizer(tmp_path, template=template)
    for arguments in ({"city": "Paris"}, json.dumps({"city": "Paris"})):
        call = {"name": "weather", "arguments": arguments}
        record = {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]}
        assert document(model, record)[1] == '{"city": "Paris"}<|im_end|>'


def test_a_role_that_the_template_leaves_out_is_refused(tmp_path: Path) -> None:
    template = CHATML.replace(
        "{% for message in messages %}",
        "{% for message in messages if message.role in ['user', 'assistant'] %}",
    )
    model = write_tokenizer(tmp_path, template=template)
    record = {"messages": [{"role": "developer", "content": "Be brief."}, *CHAT["messages"]]}
    with pytest.raises(ConfigError, match=r"message 1: .*'developer'"):
        document(model, record)
    assert document(write_tokenizer(tmp_path), record)[0].startswith("<|im_start|>developer")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"text": "Two", "weight": 0}, "'weight' of a record is 0"),
        ({"text": "Two", "loss_mask": [0, 1]}, "'loss_mask' of a record"),
        ({**CHAT, "train": False}, "'train' of a record is False"),
        ({"prompt": "Two?", "completion": " five", "label": False}, "unpaired preference"),
        ({**CHAT, "label": True}, "'messages' and a 'label' of .* unpaired preference"),
        ({"instruction": "Two?", "output": "Five", "kto_tag": False}, "'kto_tag' of true"),
    ],
    ids=str,
)
def test_a_record_that_is_not_to_be_learned_as_it_is_is_refused(
    tmp_path: Path, record: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read(write_tokenizer(tmp_path), [record])


@pytest.mark.parametrize("content", ["list", "lines"])
def test_a_json_file_is_one_of_records(tmp_path: Path, content: str) -> None:
    model = write_tokenizer(tmp_path / "model")
    records = [{"text": "The fox"}, {"text": "Two"}]
    file = tmp_path / "data" / "train.json"
    file.parent.mkdir()
    lines = "".join(f"{json.dumps(record)}\n" for record in records)
    file.write_text(json.dumps(records, indent=2) if content == "list" else lines)
    (file.parent / "dataset_info.json").write_text("{}\n")
    given = DataConfig(source=str(file.parent), pattern="*.json")
    corpus = records_of(open_corpus(given))
    assert corpus is not None
    text = open_records(corpus, given, tokenizer_file=model / "tokenizer.json")
    assert [pair[0] for pair in documents(text, model)] == ["The fox</s>", "Two</s>"]


@pytest.mark.parametrize(
    "files",
    [{"a.json": '[{"text": "x"}]', "b.py": "x = 1"}, {"a.json": '{\n  "strict": true\n}\n'}],
    ids=str,
)
def test_a_json_file_among_texts_is_text(tmp_path: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert records_of(open_corpus(DataConfig(source=str(tmp_path), pattern="*"))) is None


MESSAGES = [{"role": "user", "content": "Two?"}, {"role": "assistant", "content": "2"}]


@pytest.mark.parametrize(
    "value",
    [
        {"messages": MESSAGES},
        {"version": 1, "data": [{"messages": MESSAGES}]},
        [MESSAGES, MESSAGES],
        {"prompt": ["a"], "completion": ["b"]},
        {"train": [{"instruction": "a", "output": "b"}]},
        {"rejected": ["a"], "chosen": ["b"]},
    ],
    ids=["one record", "wrapped", "lists", "columns", "split", "pairs"],
)
@pytest.mark.parametrize("beside", [{}, {"b.jsonl": '{"text": "x"}\n'}], ids=["alone", "beside"])
def test_records_in_another_form_of_json_are_not_learned_as_json(
    tmp_path: Path, value: Any, beside: dict[str, str]
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(value, indent=1))
    for name, content in beside.items():
        (tmp_path / name).write_text(content)
    corpus = open_corpus(DataConfig(source=str(tmp_path), pattern="*"))
    with pytest.raises(ConfigError, match=r"a\.json has records"):
        records_of(corpus)
