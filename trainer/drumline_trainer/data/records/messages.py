"""Messages as chat templates read them: the normaliser between a record and its template. Pure.

Data sets store one conversation in many ways. JSON strings are decoded, nulls are dropped, text
parts are joined, and the names of ShareGPT and of OpenAI's older calls are replaced. An unknown
field of a message is refused, because a template would ignore it silently.

    {"from": "gpt", "value": "Two.", "weight": 0}
    Turn(message={"role": "assistant", "content": "Two."}, learned=False)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

Message = Mapping[str, Any]
ASSISTANT: Final = "assistant"
_OWN_ROLES: Final = ("user", ASSISTANT, "system", "tool", "developer")
_ROLES: Final = {
    **{role: role for role in _OWN_ROLES},
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "chatbot", "bing", "bard", "model", "ai"), ASSISTANT),
    **dict.fromkeys(("observation", "function_response", "tool_response"), "tool"),
}
"""Names of roles, also those of other formats, in small letters. A template that knows a name keeps
it as it is written."""
_CALLS: Final = ("function_call", "tool_call")
"""Roles of messages whose text is a call of the assistant."""
_FLAGS: Final = ("weight", "train", "trainable", "loss_mask")
_ANSWERS: Final = ("completion", "messages", "conversations", "output")
_PREFERENCES: Final = ("label", "kto_tag")
"""Fields of an unpaired preference, in TRL and in LLaMA-Factory."""
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
_THOUGHTS: Final = frozenset(_REASONING)
"""A template that reads one of these gets all of them."""
_FIELDS: Final = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", *_FLAGS})
_WITHOUT_EFFECT: Final = frozenset({"refusal", "audio", "annotations"})
"""Fields of OpenAI's answers that are empty in answers of text."""
_WHERE_EMPTY: Final = _WITHOUT_EFFECT | _THOUGHTS
_TEXT_PARTS: Final = frozenset({"text", "input_text", "output_text"})


@dataclass(frozen=True, slots=True)
class Turn:
    """A message, and whether it is learned."""

    message: Message
    learned: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """All that a chat template reads."""

    turns: tuple[Turn, ...]
    prompt: int | None = None
    """Number of messages that ask, of a prompt with a completion."""
    tools: Sequence[Any] | None = None
    documents: Sequence[Any] | None = None
    variables: Mapping[str, Any]
    """`chat_template_kwargs` of the record, such as `enable_thinking`."""

    @property
    def messages(self) -> list[Message]:
        """The messages alone."""
        return [turn.message for turn in self.turns]


def without_nulls(value: Any) -> Any:
    """Drop the fields without a value at all depths: columns have them for every row."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {name: without_nulls(each) for name, each in fields.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in cast("list[Any]", value)]
    return value


def decoded(value: Any, name: str) -> Any:
    """Decode JSON that a record holds as a string, even twice. Raises ValueError."""
    for _ in range(2):
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{name!r} is a string that is not JSON: {error}") from error
    return value


def turns_of(value: Any, *, words: frozenset[str] = frozenset()) -> tuple[Turn, ...]:
    """Normalise a list of messages.

    Args:
        value: the messages, or a JSON string of them.
        words: the names that the chat template reads. A field that it reads is known.

    Raises:
        ValueError: a message has an unknown field, no role, or a value of another type.
    """
    raw = decoded(value, "messages")
    if not isinstance(raw, list) or not raw:
        raise ValueError("its messages must be a list that is not empty")
    messages = cast("list[Any]", raw)
    return tuple(_turn(message, number, words) for number, message in enumerate(messages))


def is_question(message: Any) -> bool:
    """Return whether a raw message is one of the user."""
    if not isinstance(message, dict):
        return False
    fields = cast("dict[str, Any]", message)
    role = str(fields.get("role", fields.get("from")))
    return _ROLES.get(role.lower()) == "user"


def tools_of(record: Mapping[str, Any]) -> list[Any] | None:
    """Normalise `tools`, or OpenAI's older `functions`. Raises ValueError."""
    tools = record.get("tools")
    # Columns that other rows fill are often an empty text or "null" here.
    if tools is not None and tools not in ("", "null"):
        return _objects(tools, "tools")
    if record.get("functions") is not None:
        functions = _objects(record["functions"], "functions")
        return [{"type": "function", "function": function} for function in functions]
    return None


def documents_of(record: Mapping[str, Any]) -> list[Any] | None:
    """Normalise the `documents` of a template that reads them. Raises ValueError."""
    known = record.get("documents")
    return None if known is None else _objects(known, "documents")


def variables_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record's own `chat_template_kwargs`. Raises ValueError."""
    known = decoded(record.get("chat_template_kwargs") or {}, "chat_template_kwargs")
    if not isinstance(known, dict):
        raise ValueError("'chat_template_kwargs' is not an object")  # noqa: TRY004 - a defect of data
    return cast("dict[str, Any]", known)


def _objects(value: Any, name: str) -> list[Any]:
    raw = decoded(value, name)
    if not isinstance(raw, list):
        raise ValueError(f"{name!r} is not a list")  # noqa: TRY004 - a defect of data
    known = [decoded(each, name) for each in cast("list[Any]", raw)]
    if not all(isinstance(each, dict) for each in known):
        raise ValueError(f"an entry of {name!r} is not an object")
    return known


def _turn(raw: Any, number: int, words: frozenset[str]) -> Turn:
    if not isinstance(raw, dict):
        raise ValueError(f"message {number + 1} is not an object")  # noqa: TRY004 - a defect of data
    given = cast("dict[str, Any]", raw)
    message = {name: value for name, value in given.items() if value is not None}
    try:
        return _checked(_renamed(message, words), words)
    except ValueError as error:
        raise ValueError(f"message {number + 1}: {error}") from error


def _renamed(message: dict[str, Any], words: frozenset[str]) -> dict[str, Any]:
    """Replace the names of ShareGPT and of older calls with those of chat templates."""
    spoken = "role" not in message and "from" in message
    if spoken:
        renames = {"from": "role", "value": "content"}
        message = {renames.get(name, name): value for name, value in message.items()}
    role = message.get("role")
    if not isinstance(role, str):
        raise ValueError("a message has neither a 'role' nor a 'from' that is text")  # noqa: TRY004 - a defect of data
    if role in _CALLS and role not in words:
        call = decoded(message.pop("content", None), role)
        calls = cast("list[Any]", call) if isinstance(call, list) else [call]
        wrapped = [{"type": "function", "function": each} for each in calls]
        return {**message, "role": ASSISTANT, "tool_calls": wrapped}
    if role == "function" and "tool" in words:  # `words` has the field `function` of calls, too
        message["role"] = "tool"
    elif role not in words:
        message["role"] = _ROLES.get(role.lower(), role)
        # ShareGPT has no roles of its own, so an unknown speaker may be the one that is learned.
        if spoken and message["role"] not in _OWN_ROLES:
            raise ValueError(
                f"'from' is {role!r}, an unknown speaker; write one of"
                f" {', '.join(map(repr, _ROLES))}"
            )
    if "function_call" in message and "function_call" not in words:
        call = decoded(message.pop("function_call"), "function_call")
        message.setdefault("tool_calls", [{"type": "function", "function": call}])
    return message


def _checked(message: dict[str, Any], words: frozenset[str]) -> Turn:
    empty = {name for name in _WHERE_EMPTY & message.keys() if not message[name]}
    known = _FIELDS | (_THOUGHTS if _THOUGHTS & words else frozenset[str]()) | words
    unknown = sorted(message.keys() - known - empty)
    if unknown:
        raise ValueError(
            f"unknown field {', '.join(map(repr, unknown))}: the chat template does not read it;"
            " remove it, or use a template that reads it (data.chat_template)"
        )
    learned = _is_learned(message)
    kept = {name: each for name, each in message.items() if name not in (*_FLAGS, *empty)}
    if "tool_calls" in kept:
        calls = [_call(each) for each in _objects(kept.pop("tool_calls"), "tool_calls")]
        if calls:
            kept["tool_calls"] = calls
    if "content" in kept:
        kept["content"] = _joined(kept["content"])
    elif "tool_calls" not in kept:
        kept["content"] = ""
    for name in ("name", "tool_call_id"):
        if not isinstance(kept.get(name, ""), str):
            raise ValueError(f"{name!r} is not text")  # noqa: TRY004 - a defect of data
    reasoning = next((kept[name] for name in _REASONING if name in kept), None)
    if reasoning is not None:  # as transformers does: templates read one of two names
        kept = {"thinking": reasoning, **kept, "reasoning_content": reasoning}
    return Turn(kept, learned)


def check_whole_record(record: Mapping[str, Any]) -> None:
    """Raise ValueError where a record says of itself that it is not to be learned as it is."""
    for name in (name for name in _FLAGS if name in record):
        value = record[name]
        if isinstance(value, list | str) or value not in (1, None):
            raise ValueError(
                f"{name!r} of a record is {value!r}, and records are learned with equal weight;"
                " leave such records out, or flag their messages"
            )
    answer = next((name for name in _ANSWERS if name in record), None)
    mark = next((name for name in _PREFERENCES if isinstance(record.get(name), bool)), None)
    if answer is not None and mark is not None:
        raise ValueError(
            f"a record with {answer!r} and a {mark!r} of true or false is an unpaired preference:"
            " what is not wanted would be learned too; leave out the records with false and the"
            f" field {mark!r}"
        )


def _is_learned(message: Mapping[str, Any]) -> bool:
    """Read the flags of a message. Without one, the assistant's messages are learned."""
    flags = {name: message[name] for name in _FLAGS if name in message}
    for name, value in flags.items():
        if value not in (0, 1) or isinstance(value, str):
            raise ValueError(f"{name!r} must be 0, 1, true or false, not {value!r}")
    if len(set(map(bool, flags.values()))) > 1:
        raise ValueError(f"{', '.join(map(repr, flags))} contradict each other")
    if message["role"] == ASSISTANT:
        return all(flags.values())
    if any(flags.values()):
        name = next(iter(flags))
        raise ValueError(
            f"{name!r} asks to learn a message of {message['role']!r}: only messages of"
            f" {ASSISTANT!r} are learned; remove it"
        )
    return False


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """Decode the function and the arguments of a call, and drop what has no value."""
    known = {name: value for name, value in call.items() if value is not None}
    if not isinstance(known.get("name", ""), str):
        raise ValueError("the 'name' of a call is not text")  # noqa: TRY004 - a defect of data
    if "function" in known:
        function = decoded(known["function"], "function")
        if not isinstance(function, dict):
            raise ValueError("the function of a call is not an object")
        known["function"] = _call(cast("dict[str, Any]", function))
    if "arguments" in known:
        arguments = decoded(known["arguments"] or {}, "arguments")
        if not isinstance(arguments, dict):
            raise ValueError("the 'arguments' of a call are no object")
        known["arguments"] = arguments
    return known


def _joined(content: Any) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        kind = type(content).__name__
        raise ValueError(f"'content' must be a text or a list of text parts, not of type {kind}")  # noqa: TRY004 - a defect of data
    return "".join(_part(part) for part in cast("list[Any]", content))


def _part(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise ValueError("a part of 'content' is neither a text nor an object")  # noqa: TRY004 - a defect of data
    fields = {n: v for n, v in cast("dict[str, Any]", part).items() if v is not None}
    kind = fields.pop("type", "text")
    if not isinstance(kind, str) or kind not in _TEXT_PARTS:
        raise ValueError(f"a part of 'content' has the type {kind!r}: only text parts are read")
    text = fields.pop("text", "")
    unknown = [name for name in sorted(fields) if fields[name] or name not in _WITHOUT_EFFECT]
    if unknown:
        raise ValueError(
            f"a part of 'content' has the unknown field {', '.join(map(repr, unknown))}"
        )
    if not isinstance(text, str):
        raise ValueError("the 'text' of a part of 'content' is not text")  # noqa: TRY004 - a defect of data
    return text


def encoded_arguments(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with the arguments of calls as JSON strings: some templates want them."""
    return [
        {**message, "tool_calls": [_encoded(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def arguments_of(messages: Iterable[Message]) -> Iterator[Mapping[str, Any]]:
    """Return the arguments of all calls that have some."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            arguments = call.get("function", call).get("arguments")
            if arguments:
                yield arguments


def _encoded(call: Mapping[str, Any]) -> dict[str, Any]:
    known = dict(call)
    if "function" in known:
        known["function"] = _encoded(known["function"])
    if "arguments" in known:
        known["arguments"] = json.dumps(known["arguments"], ensure_ascii=False)
    return known
