"""Kinds of records, by their fields: a text, a conversation, or a prompt and its completion.

{"text": "..."}
{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
{"instruction": "...", "input": "...", "output": "..."}
{"prompt": "...", "completion": "..."}, both texts or both lists of messages
{"prompt": "...", "chosen": "...", "rejected": "..."}, all texts or all lists of messages; or
                    without a prompt, or with a text that is one: two whole lists of messages

Lists may be JSON strings. A record with messages and a text is a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, cast

from drumline_trainer.data.records.messages import (
    ASSISTANT,
    Conversation,
    Turn,
    decoded,
    documents_of,
    is_question,
    tools_of,
    turns_of,
    variables_of,
)

Record = Mapping[str, Any]
DEFAULT_FIELD: Final = "text"
_LISTS: Final = ("messages", "conversations")
_EITHER: Final = ("prompt", "completion", "chosen", "rejected")
"""Fields that are texts or lists of messages."""
_BESIDE: Final = ("system", "tools", "functions", "documents", "chat_template_kwargs")
"""Fields that reach the template of each side of a pair."""

_UNREAD: Final = ("images", "image", "videos", "audios", "audio", "input_ids", "system_prompt")
"""Fields that other trainers learn from, and ours does not."""


class RecordKind(StrEnum):
    """Conversion of a record to text."""

    TEXT = "text"
    """All of it is learned."""
    CONVERSATION = "conversation"
    """Rendered by the chat template. The assistant's messages are trained on."""
    COMPLETION = "completion"
    """One text after the other; the second is learned."""
    PREFERRED_CONVERSATION = "preferred conversation"
    """Two conversations, of which the first is preferred."""
    PREFERRED_COMPLETION = "preferred completion"
    """Two completions of a prompt, of which the first is preferred."""

    @property
    def of_each(self) -> RecordKind:
        """The kind of a record, or of each side of a pair."""
        return _SIDES.get(self, self)

    @property
    def paired(self) -> bool:
        """True if a record has two texts."""
        return self in _SIDES


_SIDES: Final = {
    RecordKind.PREFERRED_CONVERSATION: RecordKind.CONVERSATION,
    RecordKind.PREFERRED_COMPLETION: RecordKind.COMPLETION,
}
_WITHOUT_TEMPLATE: Final = (RecordKind.COMPLETION, RecordKind.PREFERRED_COMPLETION)


def normalized(record: Record) -> Record:
    """Drop fields without a value, and decode lists of messages that are JSON strings.

    Raises:
        ValueError: `messages` or `conversations` is a string that is not JSON.
    """
    known = {name: value for name, value in record.items() if value is not None}
    for name in _LISTS:
        if name in known:
            known[name] = decoded(known[name], name)
    for name in _EITHER:
        if name in known:
            known[name] = _messages_or_text(known[name])
    return known


def kind_of(record: Record, *, field: str) -> RecordKind | None:
    """Return the kind of a normalized record. None: it is unknown."""
    if {"chosen", "rejected"} <= record.keys():
        return _kind_of_pair(record)
    text = isinstance(record.get(field), str)
    if text and field != DEFAULT_FIELD:
        return RecordKind.TEXT
    if record.keys() & set(_LISTS) or _asks_by_messages(record):
        return RecordKind.CONVERSATION
    if isinstance(record.get("prompt"), str) and isinstance(record.get("completion"), str):
        return RecordKind.COMPLETION
    if text:
        return RecordKind.TEXT
    return RecordKind.CONVERSATION if {"instruction", "output"} <= record.keys() else None


def unused_fields(record: Record, *, field: str) -> str | None:
    """Say which part of a record is not read, or return None if there is one reading."""
    record = {name: value for name, value in record.items() if value is not None}
    unread = next((name for name in _UNREAD if record.get(name)), None)
    if unread is not None:
        return f"have {unread!r}, which is not read"
    if record.get("system") and kind_of(record, field=field) in _WITHOUT_TEMPLATE:
        return "have 'system' beside texts: it is not read; write messages"
    kind = kind_of(record, field=field)
    if kind is None or kind.paired:
        return None
    text = [field] if isinstance(record.get(field), str) else []
    structured = [name for name in _structured(record) if name != field]
    known = [*text, *structured] if kind is RecordKind.TEXT else [*structured, *text]
    if len(known) < 2:
        return None
    return f"have {known[1]!r} beside {known[0]!r}: {known[0]!r} is learned"


def _structured(record: Record) -> list[str]:
    """Return the fields that each make a conversation or a completion, in order of preference."""
    names = (*_LISTS, "completion", "instruction")
    wanted = {"completion": "prompt", "instruction": "output"}
    return [name for name in names if record.get(name) and wanted.get(name, name) in record]


def sides_of(record: Record) -> tuple[Record, Record]:
    """Return the chosen and the rejected side of a normalized pair as records.

    The common first messages of two whole conversations are the prompt. A text beside answers
    without a question is the question.
    """
    beside = {name: record[name] for name in _BESIDE if name in record}
    chosen, rejected, prompt = record["chosen"], record["rejected"], record.get("prompt")
    if isinstance(chosen, list) and not isinstance(prompt, list):
        first, second = cast("list[Any]", chosen), cast("list[Any]", rejected)
        most = min(len(first), len(second)) - 1
        shared = next((n for n in range(most) if first[n] != second[n]), max(0, most))
        asked, chosen, rejected = first[:shared], first[shared:], second[shared:]
        if prompt and not any(map(is_question, (*first, *second))):
            asked = [*asked, {"role": "user", "content": prompt}]
        prompt = asked
    else:
        chosen, rejected = _without(prompt, chosen), _without(prompt, rejected)
    return (
        {"prompt": prompt, "completion": chosen, **beside},
        {"prompt": prompt, "completion": rejected, **beside},
    )


def _without(prompt: Any, answer: Any) -> Any:
    """Return an answer without the messages of its prompt, which some data sets repeat in it."""
    if not isinstance(prompt, list) or not isinstance(answer, list):
        return answer
    asked, messages = cast("list[Any]", prompt), cast("list[Any]", answer)
    repeated = len(messages) > len(asked) and messages[: len(asked)] == asked
    return messages[len(asked) :] if repeated else messages


def conversation_of(record: Record, *, words: frozenset[str] = frozenset()) -> Conversation:
    """Return the conversation of a normalized record.

    Args:
        record: record of the kind `CONVERSATION`.
        words: names that its chat template reads.

    Raises:
        ValueError: its messages cannot be read.
    """
    prompt = None
    if "messages" in record:
        turns = _with_system(record, turns_of(record["messages"], words=words))
    elif "conversations" in record:
        turns = _with_system(record, turns_of(record["conversations"], words=words))
    elif _asks_by_messages(record):
        asked: list[Any] = record["prompt"]
        answer = _without(asked, record["completion"])
        if isinstance(answer, str):
            answer = [{"role": ASSISTANT, "content": answer}]
        whole = turns_of([*asked, *answer], words=words)
        prompt = len(asked)
        turns = (*(Turn(turn.message, False) for turn in whole[:prompt]), *whole[prompt:])
        turns = _with_system(record, turns)
        prompt = len(turns) - len(answer)
    else:
        turns = _with_system(record, _instruction(record))
    return Conversation(
        turns=turns,
        prompt=prompt,
        tools=tools_of(record),
        documents=documents_of(record),
        variables=variables_of(record),
    )


def _kind_of_pair(record: Record) -> RecordKind | None:
    pair = [record["chosen"], record["rejected"]]
    if all(isinstance(answer, list) for answer in pair):
        return RecordKind.PREFERRED_CONVERSATION
    if not all(isinstance(answer, str) for answer in pair):
        return None
    if isinstance(record.get("prompt"), list):
        return RecordKind.PREFERRED_CONVERSATION
    return RecordKind.PREFERRED_COMPLETION if isinstance(record.get("prompt"), str) else None


def _asks_by_messages(record: Record) -> bool:
    answered = isinstance(record.get("completion"), list | str)
    return isinstance(record.get("prompt"), list) and answered


def _messages_or_text(value: Any) -> Any:
    """Decode messages that are stored as a JSON text."""
    if not isinstance(value, str) or not value.lstrip().startswith("["):
        return value
    try:
        known: Any = json.loads(value)
    except (ValueError, RecursionError):
        return value
    messages = cast("list[Any]", known)
    are_messages = all(
        isinstance(each, dict) and {"role", "from"} & each.keys() for each in messages
    )
    return messages if messages and are_messages else value


def _with_system(record: Record, turns: tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Put the field `system` of a record first, if it has one."""
    system = record.get("system")
    if not isinstance(system, str | None):
        raise ValueError("'system' must be text")  # noqa: TRY004 - a defect of data
    if not system:
        return turns
    first = turns[0].message
    if first["role"] == "system":
        if first.get("content", "").strip() == system.strip():
            return turns
        raise ValueError(
            "'system' and the first message are two system texts; join them in the message"
        )
    return (Turn({"role": "system", "content": system}, False), *turns)


def _instruction(record: Record) -> tuple[Turn, ...]:
    """Read Alpaca's fields: instruction, optional input, output, and optional earlier turns."""
    texts = [record.get(name) or "" for name in ("instruction", "input", "output")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("'instruction', 'input' and 'output' must be texts")
    instruction, given, output = texts
    # Some rows have no instruction, or an input of blanks.
    asked = "\n\n".join(text for text in (instruction, given) if text.strip())
    pairs = [*_history(record), (asked, output)]
    return tuple(
        Turn({"role": role, "content": text}, role == ASSISTANT)
        for pair in pairs
        for role, text in zip(("user", ASSISTANT), pair, strict=True)
    )


def _history(record: Record) -> list[tuple[str, str]]:
    known = decoded(record.get("history") or [], "history")
    pairs: list[tuple[str, str]] = []
    for each in cast("list[Any]", known) if isinstance(known, list) else [known]:
        match each:
            case [str(asked), str(answer)]:
                pairs.append((asked, answer))
            case _:
                raise ValueError("'history' must be a list of pairs of texts")
    return pairs
