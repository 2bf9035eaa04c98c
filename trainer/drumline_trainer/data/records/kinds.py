"""What a record is, by its fields: a text, a conversation, or a prompt and its completion.

{"text": "..."}
{"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
{"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}
{"instruction": "...", "input": "...", "output": "..."}
{"prompt": "...", "completion": "..."}, both texts or both lists of messages
{"prompt": "...", "chosen": "...", "rejected": "..."}, all texts or all lists of messages; or
                    without a prompt, or with a text that is one: two whole lists of messages
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final, cast

from drumline_trainer.data.records.chat_template import Message

Record = Mapping[str, Any]
_ROLES: Final = {"human": "user", "gpt": "assistant", "chatgpt": "assistant", "bot": "assistant"}


class RecordKind(StrEnum):
    """How a record becomes text."""

    TEXT = "text"
    """All of it is learned."""
    CONVERSATION = "conversation"
    """By the chat template; what the assistant says is learned."""
    COMPLETION = "completion"
    """One text after the other; the second is learned."""
    PREFERRED_CONVERSATION = "preferred conversation"
    """Two conversations, of which the first is preferred."""
    PREFERRED_COMPLETION = "preferred completion"
    """Two completions of a prompt, of which the first is preferred."""

    @property
    def of_each(self) -> RecordKind:
        """What a record, or each side of a pair, is."""
        return _SIDES.get(self, self)

    @property
    def paired(self) -> bool:
        """Whether a record is two texts."""
        return self in _SIDES


_SIDES: Final = {
    RecordKind.PREFERRED_CONVERSATION: RecordKind.CONVERSATION,
    RecordKind.PREFERRED_COMPLETION: RecordKind.COMPLETION,
}


def kind_of(record: Record, *, field: str) -> RecordKind | None:
    """The kind that these fields are of; None: of none."""
    if {"chosen", "rejected"} <= record.keys():
        return _kind_of_pair(record)
    if isinstance(record.get(field), str):
        return RecordKind.TEXT
    if isinstance(record.get("prompt"), str) and isinstance(record.get("completion"), str):
        return RecordKind.COMPLETION
    named = {"messages"} & record.keys() or {"conversations"} & record.keys()
    if named or {"instruction", "output"} <= record.keys() or _both_lists(record):
        return RecordKind.CONVERSATION
    return None


def sides_of(record: Record) -> tuple[Record, Record]:
    """The chosen and the rejected side of a pair, each a record of its own."""
    chosen, rejected = (_side(record, name) for name in ("chosen", "rejected"))
    return chosen, rejected


def _kind_of_pair(record: Record) -> RecordKind | None:
    pair = [record["chosen"], record["rejected"]]
    if all(isinstance(answer, list) for answer in pair):
        return RecordKind.PREFERRED_CONVERSATION
    if all(isinstance(answer, str) for answer in (*pair, record.get("prompt"))):
        return RecordKind.PREFERRED_COMPLETION
    return None


def _side(record: Record, name: str) -> Record:
    tools = {"tools": record["tools"]} if "tools" in record else {}
    whole = isinstance(record[name], list) and not isinstance(record.get("prompt"), list)
    if whole:  # its begin is the prompt, and what is learned of it is the same on both sides
        return {"messages": record[name], **tools}
    return {"prompt": record["prompt"], "completion": record[name], **tools}


def messages_of(record: Record) -> list[Message]:
    """The messages of a conversation.

    Raises:
        ValueError: they are no list of objects with a role.
    """
    if "messages" in record:
        return _checked(record["messages"])
    if "conversations" in record:
        return [_renamed(message) for message in _objects(record["conversations"])]
    if _both_lists(record):
        return _checked([*record["prompt"], *record["completion"]])
    return _instruction(record)


def _both_lists(record: Record) -> bool:
    return isinstance(record.get("prompt"), list) and isinstance(record.get("completion"), list)


def _instruction(record: Record) -> list[Message]:
    """Alpaca's fields: an instruction, maybe an input to it, and the output."""
    texts = [record.get(name) or "" for name in ("instruction", "input", "output")]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("'instruction', 'input' and 'output' must be texts")
    instruction, given, output = texts
    asked = f"{instruction}\n\n{given}" if given else instruction
    return [{"role": "user", "content": asked}, {"role": "assistant", "content": output}]


def _renamed(message: Message) -> Message:
    """ShareGPT's names as everybody's."""
    if "role" in message:
        return message
    sender = message.get("from")
    if not isinstance(sender, str):
        raise ValueError("a message has neither 'role' nor 'from'")  # noqa: TRY004 - a defect of data
    return {"role": _ROLES.get(sender, sender), "content": message.get("value")}


def _checked(value: Any) -> list[Message]:
    messages = _objects(value)
    if not all(isinstance(message.get("role"), str) for message in messages):
        raise ValueError("a message has no 'role'")
    return messages


def _objects(value: Any) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise ValueError("its messages are no list")
    messages = cast("list[Any]", value)
    if not all(isinstance(message, dict) for message in messages):
        raise ValueError("a message is no object")
    return messages
