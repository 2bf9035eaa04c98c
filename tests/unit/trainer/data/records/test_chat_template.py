from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from drumline_contract.config import ConfigError
from drumline_trainer.data.records import answer_spans
from drumline_trainer.data.records.answer_spans import Ends
from drumline_trainer.data.records.chat_template import ChatTemplate
from drumline_trainer.data.records.learned_text import LearnedText
from drumline_trainer.data.records.messages import Conversation, turns_of
from drumline_trainer.data.records.template_files import chat_templates_of
from tests.unit.trainer.data.records.conversations import (
    MARKED,
    MARKS,
    TEMPLATE,
    conversation,
)

TOKENS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
TWO_TURNS = conversation(0)["messages"]
QWEN3_LIKE = (
    "{%- for message in messages %}{{ '<|' + message.role + '|>' }}"
    "{%- if message.role == 'assistant' and loop.last %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{{ message.content + '<|end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|assistant|>' }}{%- endif %}"
)
THINKING_ASKED = QWEN3_LIKE.replace("{{ '<|assistant|>' }}", "{{ '<|assistant|><think>' }}")
REWRITING = (
    "{{ messages | length }}{% for message in messages %}{{ message.role + message.content }}"
    "{% endfor %}"
)


def template(source: str = TEMPLATE) -> ChatTemplate:
    ends = Ends(stops=("<|end|>",), special=frozenset(MARKS))
    return ChatTemplate.of(source, tokens=TOKENS, ends=ends)


def render(source: str, messages: list[dict[str, Any]], **more: Any) -> LearnedText:
    made = template(source)
    turns = turns_of(messages, words=made.words)
    return made.render(Conversation(turns=turns, variables={}, **more))


def learned(source: str, messages: list[dict[str, Any]]) -> list[str]:
    rendered = render(source, messages)
    return [rendered.text[start:stop] for start, stop in rendered.learned or ()]


@pytest.mark.parametrize("source", [TEMPLATE, MARKED])
def test_what_the_assistant_says_is_learned_with_the_end_of_its_turn(source: str) -> None:
    assert learned(source, TWO_TURNS) == [
        "The capital of France is Paris.<|end|>",
        "It is Rome.<|end|>",
    ]


def test_the_text_is_what_transformers_renders() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 - seconds

    for source in (TEMPLATE, MARKED, QWEN3_LIKE):
        messages = [{"role": "system", "content": " Be brief: <b>&'\"é "}, *TWO_TURNS]
        rendered, _ = render_jinja_template(
            conversations=[messages], chat_template=source, **TOKENS
        )
        assert render(source, messages).text == rendered[0]


def test_its_own_marks_give_what_transformers_gives() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template  # noqa: PLC0415 - seconds

    _, spans = render_jinja_template(
        conversations=[TWO_TURNS],
        chat_template=MARKED,
        return_assistant_tokens_mask=True,
        **TOKENS,
    )
    assert list(render(MARKED, TWO_TURNS).learned or ()) == [tuple(s) for s in spans[0]]


@pytest.mark.parametrize("source", [TEMPLATE, MARKED])
@pytest.mark.parametrize("mark", ["\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"], ids=ascii)
def test_texts_with_marks_of_our_own_are_refused(source: str, mark: str) -> None:
    """They would move what is learned, or leave the answer out."""
    said = [{"role": "user", "content": "How?"}, {"role": "assistant", "content": "So."}]
    for turn in (0, 1):
        texts = [{**each} for each in said]
        texts[turn]["content"] += mark
        with pytest.raises(ValueError, match=f"noncharacter U\\+{ord(mark):04X}"):
            render(source, texts)
    with pytest.raises(ValueError, match="noncharacter"):
        render(source, said, tools=[{"name": f"a{mark}"}])


def test_thoughts_that_only_the_last_turn_keeps() -> None:
    answers = learned(QWEN3_LIKE, TWO_TURNS)
    assert answers[0] == "The capital of France is Paris.<|end|>"
    assert answers[1] == "<think>\n\n</think>\n\nIt is Rome.<|end|>"


def test_words_that_only_ask_are_not_in_the_answer() -> None:
    assert learned(THINKING_ASKED, TWO_TURNS)[0] == "The capital of France is Paris.<|end|>"


def test_a_template_that_rewrites_the_past_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mark what is learned by \{% generation %\}"):
        render(REWRITING, TWO_TURNS)


def test_a_conversation_of_which_nothing_is_learned() -> None:
    assert render(TEMPLATE, TWO_TURNS[:1]).learned == ()


def test_tools_reach_the_template() -> None:
    with_tools = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tools = [{"name": "été <1>"}]
    assert render(with_tools, TWO_TURNS[:1], tools=tools).text.startswith(
        json.dumps(tools, ensure_ascii=False)
    )


CALLING = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Paris"}}}],
}
ONLY_WITHOUT_CONTENT = TEMPLATE.replace(
    "message['content'] | trim",
    "(message.tool_calls | tojson if message.content is none else message.content)",
)


def test_a_call_that_the_template_leaves_out_is_not_learned_as_silence() -> None:
    """The template of DeepSeek R1 writes a call only if its message has no `content`."""
    tools = [{"type": "function", "function": {"name": "weather"}}]
    source = "{{ tools | tojson }}" + ONLY_WITHOUT_CONTENT
    with pytest.raises(ValueError, match=r"message 2: .*does not write the call of 'weather'"):
        render(source, [*TWO_TURNS[:1], CALLING], tools=tools)
    written = source.replace("message.content is none", "message.tool_calls")
    assert "weather" in learned(written, [*TWO_TURNS[:1], CALLING])[0]


def test_arguments_that_are_no_json_are_an_error_of_the_record() -> None:
    calls = [{"function": {"name": "weather", "arguments": {"day": date(2025, 1, 1)}}}]
    source = "{{ messages[1].tool_calls }}"
    with pytest.raises(ValueError, match="written as JSON: Object of type date"):
        render(source, [*TWO_TURNS[:1], {"role": "assistant", "tool_calls": calls}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ().__class__.__base__.__subclasses__() }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_an_error_of_the_record(source: str) -> None:
    with pytest.raises(ValueError, match="the chat template refuses it"):
        render(source, TWO_TURNS)


def write_config(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def of(folder: Path, *, file: str | None = None) -> ChatTemplate:
    return chat_templates_of(folder, choice=file, ends=Ends()).for_tools(None)


def test_where_a_template_lies(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no chat template"):
        of(tmp_path)
    special = {"bos_token": "<s>", "eos_token": None}
    write_config(tmp_path, chat_template="in the config", **special)
    assert (of(tmp_path).source, of(tmp_path).tokens) == ("in the config", {"bos_token": "<s>"})
    several = [{"name": "tools", "template": "b"}, {"name": "default", "template": "a"}]
    assert of(write_config(tmp_path, chat_template=several)).source == "a"
    (tmp_path / "chat_template.jinja").write_text("its own file")
    assert of(tmp_path).source == "its own file"
    other = tmp_path / "other.jinja"
    with pytest.raises(ConfigError, match=r"data\.chat_template: .*other\.jinja: No such file"):
        of(tmp_path, file=str(other))
    other.write_text("asked for")
    assert of(tmp_path, file=str(other)).source == "asked for"
    other.write_text("{% if %}")
    with pytest.raises(ConfigError, match=r"data\.chat_template"):
        of(tmp_path, file=str(other))


@pytest.mark.parametrize("source", [TEMPLATE, MARKED])
@pytest.mark.parametrize(("messages", "characters"), [(8, 10**6), (10**6, 2 * 30)])
def test_a_conversation_whose_answers_take_too_long_to_find_is_refused(
    monkeypatch: pytest.MonkeyPatch, source: str, messages: int, characters: int
) -> None:
    """The template is rendered once for each answer, so the work grows with the square."""
    few = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    short = [*few, {**few[1], "weight": 0}]
    assert learned(source, short)
    monkeypatch.setattr(answer_spans, "MOST_MESSAGES", messages)
    monkeypatch.setattr(answer_spans, "MOST_CHARACTERS", characters)
    with pytest.raises(ValueError, match=r"too many to find its [45] answers; divide"):
        learned(source, [*few, *few, *few, *short])


def test_marks_are_found_at_once_in_a_conversation_of_any_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(answer_spans, "MOST_MESSAGES", 1)
    assert len(learned(MARKED, TWO_TURNS)) == 2
