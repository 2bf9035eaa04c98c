"""Records become the messages that a template reads, whatever data set they are from."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumline_trainer.data.records.kinds import (
    RecordKind,
    conversation_of,
    kind_of,
    normalized,
    sides_of,
    unused_fields,
)
from drumline_trainer.data.records.messages import encoded_arguments, turns_of, without_nulls

USER = {"role": "user", "content": "Two?"}
ANSWER = {"role": "assistant", "content": "four"}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"default": None}}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
CODED = {**CALL, "function": {"name": "weather", "arguments": json.dumps({"city": "Paris"})}}
CALLING = {"role": "assistant", "tool_calls": [CALL]}


def conversation(record: dict[str, Any], **more: Any) -> Any:
    return conversation_of(normalized(record), **more)


def messages(record: dict[str, Any]) -> list[Any]:
    return conversation(record).messages


def learned(record: dict[str, Any]) -> list[bool]:
    return [turn.learned for turn in conversation(record).turns]


SAME: dict[str, dict[str, Any]] = {
    "messages": {"messages": [USER, ANSWER]},
    "a JSON string": {"messages": json.dumps([USER, ANSWER])},
    "a JSON string twice": {"messages": json.dumps(json.dumps([USER, ANSWER]))},
    "nulls": {"messages": [{**USER, "tool_calls": None, "weight": None}, {**ANSWER, "name": None}]},
    "text parts": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Tw", "image": None}, "o?"]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "four"}]},
        ]
    },
    "empty fields of OpenAI's": {
        "messages": [USER, {**ANSWER, "refusal": None, "annotations": [], "tool_calls": []}]
    },
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "Two?"}, {"from": "gpt", "value": "four"}]
    },
    "ShareGPT's roles in messages": {
        "messages": [{"role": "human", "content": "Two?"}, {"role": "gpt", "content": "four"}]
    },
    "roles in conversations": {"conversations": [USER, ANSWER]},
    "speakers in capitals": {
        "conversations": [{"from": "Human", "value": "Two?"}, {"from": "GPT", "value": "four"}]
    },
    "roles in capitals": {"messages": [{**USER, "role": "User"}, {**ANSWER, "role": "ASSISTANT"}]},
    "Alpaca": {"instruction": "Two?", "input": None, "output": "four"},
    "a prompt and its completion": {"prompt": [USER], "completion": [ANSWER]},
    "JSON strings of both": {"prompt": json.dumps([USER]), "completion": json.dumps([ANSWER])},
    "a completion that repeats its prompt": {"prompt": [USER], "completion": [USER, ANSWER]},
    "a completion of text": {"prompt": [USER], "completion": "four"},
    "flags that learn it": {"messages": [{**USER, "weight": 0}, {**ANSWER, "loss_mask": 1.0}]},
}


@pytest.mark.parametrize("form", SAME)
def test_every_form_gives_the_same_messages(form: str) -> None:
    record = SAME[form]
    assert kind_of(normalized(record), field="text") is RecordKind.CONVERSATION
    assert messages(record) == [USER, ANSWER]
    assert learned(record) == [False, True]


@pytest.mark.parametrize(
    "call",
    [
        {"tool_calls": [CALL]},
        {"tool_calls": [CODED]},
        {"tool_calls": json.dumps([CODED])},
        {"content": None, "tool_calls": [{**CODED, "id": None}]},
        {"function_call": CODED["function"]},
        {"function_call": json.dumps(CODED["function"])},
    ],
)
def test_calls_are_decoded(call: dict[str, Any]) -> None:
    assert messages({"messages": [USER, {"role": "assistant", **call}]})[1] == CALLING


def test_a_call_of_sharegpt_is_the_assistants() -> None:
    asked = {"from": "function_call", "value": json.dumps(CODED["function"])}
    record = {
        "conversations": [
            {"from": "human", "value": "Two?"},
            asked,
            {"from": "observation", "value": "3"},
        ],
        "system": "Be brief.",
    }
    assert messages(record) == [
        {"role": "system", "content": "Be brief."},
        USER,
        CALLING,
        {"role": "tool", "content": "3"},
    ]
    assert learned(record) == [False, False, True, False]


@pytest.mark.parametrize("tools", [[TOOL], json.dumps([TOOL]), [json.dumps(TOOL)]])
def test_tools_are_decoded_and_keep_their_nulls(tools: Any) -> None:
    assert conversation({"messages": [USER], "tools": tools}).tools == [TOOL]
    functions = json.dumps([TOOL["function"]])
    assert conversation({"messages": [USER], "functions": functions}).tools == [TOOL]


def test_a_null_content_is_empty() -> None:
    record = {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": None}]}
    assert messages(record)[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("flag", ["weight", "train", "trainable", "loss_mask"])
@pytest.mark.parametrize("off", [0, False, 0.0])
def test_flags_of_a_message_are_heeded(flag: str, off: Any) -> None:
    record = {"messages": [USER, {**ANSWER, flag: off}, USER, {**ANSWER, flag: True}]}
    assert learned(record) == [False, False, False, True]
    assert messages(record) == [USER, ANSWER, USER, ANSWER]
    assert learned({"prompt": [USER, ANSWER, USER], "completion": [ANSWER]}) == [False] * 3 + [True]


REFUSED: dict[str, tuple[Any, str]] = {
    "an unknown field": ([USER, {**ANSWER, "train_detail": []}], "message 2: .*'train_detail'"),
    "a flag of another kind": ([{**ANSWER, "weight": 0.5}], "'weight' must be 0, 1"),
    "flags that contradict": ([{**ANSWER, "weight": 0, "train": True}], "contradict"),
    "a user's message to learn": ([{**USER, "train": True}], "'train' asks to learn .*'user'"),
    "no role": ([{"content": "a"}], "neither a 'role' nor a 'from'"),
    "a nested list": ([[USER]], "message 1 is not an object"),
    "a null": ([None], "message 1 is not an object"),
    "an unknown speaker": (
        [{"from": "human", "value": "Two?"}, {"from": "narrator", "value": "four"}],
        "message 2: 'from' is 'narrator'",
    ),
    "no list": (USER, "must be a list"),
    "nothing": ([], "must be a list"),
    "a string that is not JSON": ("[{", "'messages' is a string that is not JSON"),
    "a number": ([{**USER, "content": 3}], "'content' must be a text"),
    "an image": ([{**USER, "content": [{"type": "image"}]}], "type 'image'"),
    "a part's unknown field": (
        [{**USER, "content": [{"type": "text", "text": "a", "cache": 1}]}],
        "unknown field 'cache'",
    ),
    "arguments that are no object": (
        [{"role": "assistant", "tool_calls": [{"arguments": "[1]"}]}],
        "'arguments' of a call are no object",
    ),
    "arguments that are not JSON": (
        [{"role": "assistant", "tool_calls": [{"arguments": "{x"}]}],
        "'arguments' is a string that is not JSON",
    ),
    "a type of a part that is an object": (
        [{**USER, "content": [{"type": {}, "text": "a"}]}],
        "a part of 'content' has the type {}",
    ),
    "a name of a call that is a number": (
        [{"role": "assistant", "function_call": {"name": -1, "arguments": "{}"}}],
        "message 1: the 'name' of a call is not text",
    ),
    "a text that was refused": ([USER, {**ANSWER, "refusal": "I cannot"}], "'refusal'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_be_misread_is_refused_by_name(case: str) -> None:
    value, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        messages({"messages": value})


@pytest.mark.parametrize("form", ["messages", "conversations"])
def test_the_system_of_a_record_comes_first(form: str) -> None:
    system = {"role": "system", "content": "Be brief."}
    given = {"system": "Be brief.", form: [USER, ANSWER]}
    assert messages(given) == messages({form: [system, USER, ANSWER]}) == [system, USER, ANSWER]


def test_older_calls_are_known_to_templates_that_write_calls() -> None:
    record = {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "function_call": CODED["function"]},
            {"role": "function", "name": "add", "content": "3"},
        ]
    }
    words = frozenset({"assistant", "user", "tool", "function", "tool_calls"})
    known = conversation(record, words=words).messages
    assert known[1] == CALLING
    assert known[2]["role"] == "tool"


@pytest.mark.parametrize("none", ["", "null", None])
def test_a_column_of_tools_may_have_none(none: Any) -> None:
    assert conversation({"messages": [USER, ANSWER], "tools": none}).tools is None


def test_a_field_that_the_template_reads_is_known() -> None:
    record = {"messages": [USER, {**ANSWER, "channel": "final"}]}
    known = conversation(record, words=frozenset({"channel"}))
    assert known.messages[1] == {**ANSWER, "channel": "final"}


def test_thoughts_have_the_names_that_templates_read() -> None:
    record = {"messages": [USER, {**ANSWER, "reasoning": "Hm."}]}
    thought = conversation(record, words=frozenset({"thinking"})).messages[1]
    assert thought["reasoning_content"] == thought["thinking"] == "Hm."


@pytest.mark.parametrize("field", ["reasoning_content", "thinking", "reasoning"])
def test_thoughts_that_a_template_leaves_out_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"message 2: unknown field '{field}'"):
        messages({"messages": [USER, {**ANSWER, field: "Hm."}]})
    assert messages({"messages": [USER, {**ANSWER, field: ""}]})[1] == ANSWER


def test_which_reading_counts_is_said() -> None:
    both = {"text": "a", "messages": [USER, ANSWER]}
    assert kind_of(both, field="text") is RecordKind.CONVERSATION
    assert "'messages' is learned" in (unused_fields(both, field="text") or "")
    own = {"body": "a", "messages": [USER, ANSWER]}
    assert kind_of(own, field="body") is RecordKind.TEXT
    assert "'body' is learned" in (unused_fields(own, field="body") or "")
    assert unused_fields({"text": "a"}, field="text") is None


def test_what_whole_conversations_share_is_their_prompt() -> None:
    other = {"role": "assistant", "content": "five"}
    pair = {"chosen": [USER, ANSWER, USER, ANSWER], "rejected": [USER, ANSWER, USER, other]}
    for side, end in zip(sides_of(normalized(pair)), (ANSWER, other), strict=True):
        known = conversation_of(side)
        assert known.messages == [USER, ANSWER, USER, end]
        assert [turn.learned for turn in known.turns] == [False, False, False, True]


OTHER = {"role": "assistant", "content": "five"}
SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    ("pair", "before"),
    [
        ({"prompt": "Two?", "chosen": [ANSWER], "rejected": [OTHER]}, []),
        ({"prompt": "Two?", "chosen": [SYSTEM, ANSWER], "rejected": [SYSTEM, OTHER]}, [SYSTEM]),
        ({"prompt": "Two?", "chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, []),
        ({"prompt": [USER], "chosen": [USER, ANSWER], "rejected": [USER, OTHER]}, []),
        ({"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]}, []),
    ],
)
def test_the_question_of_a_pair_comes_once(pair: dict[str, Any], before: list[Any]) -> None:
    for side, end in zip(sides_of(normalized(pair)), (ANSWER, OTHER), strict=True):
        known = conversation_of(side)
        assert known.messages == [*before, USER, end]
        assert [turn.learned for turn in known.turns] == [False] * len(before) + [False, True]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def has_null_field(value: Any) -> bool:
    if isinstance(value, dict):
        return any(each is None or has_null_field(each) for each in value.values())
    return isinstance(value, list) and any(map(has_null_field, value))


@given(JSON)
def test_no_null_field_is_left_at_any_depth(value: Any) -> None:
    assert not has_null_field(without_nulls(value))
    if not has_null_field(value):
        assert without_nulls(value) == value


MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text()},
    optional={"tool_calls": st.lists(st.just(CALL), min_size=1), "name": st.text()},
)


@given(st.lists(MESSAGE, min_size=1, max_size=4))
def test_normalised_messages_stay_as_they_are(given_messages: list[dict[str, Any]]) -> None:
    once = [turn.message for turn in turns_of(given_messages)]
    assert once == given_messages
    strings = encoded_arguments(once)
    assert [turn.message for turn in turns_of(json.dumps(strings))] == once


def test_a_system_text_is_the_first_message_of_every_kind_of_conversation() -> None:
    system = {"role": "system", "content": "Be brief."}
    asked = {"prompt": [USER], "completion": [ANSWER], "system": "Be brief."}
    known = conversation(asked)
    assert known.messages == [system, USER, ANSWER]
    assert [turn.learned for turn in known.turns] == [False, False, True]
    assert known.prompt == 2
    pair = {"chosen": [USER, ANSWER], "rejected": [USER, USER], "system": "Be brief."}
    assert [conversation(side).messages[0] for side in sides_of(pair)] == [system] * 2


def test_a_record_with_two_system_texts_is_refused() -> None:
    said = {"messages": [SYSTEM, USER, ANSWER]}
    assert messages({**said, "system": "Be brief.\n"}) == [SYSTEM, USER, ANSWER]
    for record in (said, {"prompt": [SYSTEM, USER], "completion": [ANSWER]}):
        with pytest.raises(ValueError, match="two system texts"):
            messages({**record, "system": "Be kind."})


@pytest.mark.parametrize(
    ("instruction", "given", "asked"),
    [("", "How?", "How?"), ("Say.", " \n", "Say."), ("Say.", "It", "Say.\n\nIt"), ("", "", "")],
)
def test_a_blank_instruction_or_input_adds_no_lines(
    instruction: str, given: str, asked: str
) -> None:
    record = {"instruction": instruction, "input": given, "output": "So."}
    assert messages(record)[0] == {"role": "user", "content": asked}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ("messages conversations", "'conversations' beside 'messages': 'messages' is learned"),
        ("conversations instruction output", "'instruction' beside 'conversations'"),
        ("messages prompt completion", "'completion' beside 'messages'"),
        ("text instruction output", "'instruction' beside 'text': 'text' is learned"),
        ("messages prompt", ""),
        ("completion instruction output", ""),
    ],
)
def test_of_two_conversations_the_run_says_which_it_learns(fields: str, said: str) -> None:
    lists = {"messages": [USER, ANSWER], "conversations": [USER, ANSWER]}
    record = {name: lists.get(name, "Two.") for name in fields.split()}
    for absent in ({}, {"messages": None}):
        note = unused_fields({**absent, **record}, field="text") or ""
        assert said in note
        assert bool(said) is bool(note)


def test_a_system_text_that_cannot_be_read_is_not_dropped_silently() -> None:
    with pytest.raises(ValueError, match="'system' must be text"):
        messages({"messages": [USER, ANSWER], "system": ["Be brief."]})
    texts = {"prompt": "a", "completion": "b", "system": "Be brief."}
    assert "'system'" in (unused_fields(texts, field="text") or "")
    pair = {"prompt": "a", "chosen": "b", "rejected": "c", "system": "Be brief."}
    assert "'system'" in (unused_fields(pair, field="text") or "")
