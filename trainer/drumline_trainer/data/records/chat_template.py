"""Chat templates of Hugging Face: a conversation as text, with the assistant's parts.

A template is a program by the model's publisher. It runs in Jinja's sandbox, as in transformers. If
it marks generated parts (`{% generation %}`), these are trained on. Otherwise `answer_spans` finds
the assistant's turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any, Final, cast

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import FILTERS
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from drumline_contract.config import ConfigError
from drumline_trainer.data.records.answer_spans import MARKER, Ends, answer_spans, check_length
from drumline_trainer.data.records.learned_text import LearnedText
from drumline_trainer.data.records.messages import (
    ASSISTANT,
    Conversation,
    Message,
    arguments_of,
    encoded_arguments,
)

_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Noncharacters around what a template says that it generates. Texts that have them are refused."""
_BESIDE: Final = ("tools", "documents")
"""Fields of a record that a template may read."""
_DEFAULT, _FOR_TOOLS = "default", "tool_use"
_MAX_REPEATED: Final = 1 << 24
"""Characters or entries of a repetition: `'a' * 10 ** 10` would take the memory of the machine."""
_MAX_EXPONENT: Final = 64
_WIDTH: Final = re.compile(r"%(?:\([^)]*\))?[-#0 +]*[0-9]*\.?[0-9]{8,}|\{[^{}]*:[^{}]*[0-9]{8,}")
"""A width or precision of 8 digits and more in a format string."""
_WIDTH_FROM_VALUES: Final = re.compile(r"%[^%a-zA-Z]*\*|\{[^{}]*:[^{}]*\{")
"""A width or precision of a format string that is one of the values."""
_FORMATS: Final = frozenset({"format", "format_map"})
_WIDTH_METHODS: Final = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
_FILTERS_WITH_WIDTHS: Final = ("batch", "center", "format", "indent", "slice", "wordwrap")


class _Generated(Extension):
    """The tag `{% generation %}`."""

    tags = {"generation"}  # noqa: RUF012 - jinja's way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return f"{_BEGIN}{caller()}{_END}"


class _Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, without products and widths that take all memory."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Refuse large repetitions and powers."""
        if operator == "**" and isinstance(right, int) and abs(right) > _MAX_EXPONENT:
            raise SecurityError(f"a power with the exponent {right}")
        if operator == "*" and _repetition(left, right) > _MAX_REPEATED:
            raise SecurityError(f"a repetition of {_repetition(left, right)} entries")
        if operator == "%" and isinstance(left, str):
            values = cast("tuple[Any, ...]", right if isinstance(right, tuple) else (right,))
            _refuse_format(left, values)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Refuse calls with a huge width, such as `'a'.ljust(10 ** 10)`."""
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps `str.format`
        text = getattr(method, "__self__", None)
        name = getattr(method, "__name__", "") if isinstance(text, str) else ""
        if name in _FORMATS:
            _refuse_format(str(text), (*args, *kwargs.values()))
        elif name in _WIDTH_METHODS:
            _refuse_numbers((*args, *kwargs.values()))
        return super().call(context, obj, *args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """One template with the special tokens that it writes."""

    source: str
    tokens: Mapping[str, str]
    """`bos_token`, `eos_token` and the like."""
    ends: Ends
    words: frozenset[str]
    """Names of fields and strings: the fields and the roles that it knows are among them."""
    variables: frozenset[str]
    """Names of values that it is given, such as `tools`."""
    template: jinja2.Template

    @classmethod
    def of(cls, source: str, *, tokens: Mapping[str, str], ends: Ends) -> ChatTemplate:
        """Compile a template.

        Args:
            source: Jinja source.
            tokens: special tokens by name.
            ends: texts that end a turn.

        Raises:
            ConfigError: it is not a valid template.
        """
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generated, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        for name in _FILTERS_WITH_WIDTHS:
            environment.filters[name] = _with_widths(environment.filters[name])
        known: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": _no_clock}
        environment.globals |= known
        try:
            tree = environment.parse(source)
            words, variables = frozenset(_words(tree)), frozenset(find_undeclared_variables(tree))
            template = environment.from_string(source)
        except Exception as error:  # its compiler fails in many ways: too deep, too large
            raise ConfigError(
                f"data.chat_template: is no template: {type(error).__name__}: {error}"
            ) from error
        made = cls(
            source=source,
            tokens=tokens,
            ends=ends,
            words=words,
            variables=variables,
            template=template,
        )
        write = partial(made._text, Conversation(turns=(), variables={}))
        return replace(made, ends=ends.of_template(write))

    def render(self, conversation: Conversation) -> LearnedText:
        """Render a conversation, with the parts that are trained on.

        Raises:
            ValueError: the template refuses it, or the assistant's answers cannot be found in it.
        """
        messages = conversation.messages
        _check_characters(conversation)
        if "tool_calls" not in self.words and any("tool_calls" in each for each in messages):
            raise ValueError(
                "the chat template does not write 'tool_calls', and a message has them; use a"
                " template that does (data.chat_template)"
            )
        messages, whole = self._written(conversation, messages)
        self._check_roles(messages, whole)

        def write(part: Sequence[Message], *, ask: bool = False) -> str:
            return self._text(conversation, part, ask=ask)

        turns = [turn.learned for turn in conversation.turns]
        if _BEGIN in whole:
            made = _unmarked(whole, only=_learned_marks(conversation, messages, whole, write))
            self._check_calls(conversation, made)
            return made
        prompt = None
        if conversation.prompt:
            asked = write(messages[: conversation.prompt], ask=True)
            prompt = asked if whole.startswith(asked) else None
        spans = answer_spans(whole, messages, turns, write=write, ends=self.ends)
        made = LearnedText(whole, tuple(spans), prompt=prompt)
        self._check_calls(conversation, made)
        return made

    def unread(self, record: Mapping[str, Any]) -> str | None:
        """Say which field of a record the template leaves out, or return None."""
        left_out = (name for name in _BESIDE if record.get(name) and name not in self.variables)
        name = next(left_out, None)
        return None if name is None else f"have {name!r}, which the chat template does not write"

    def _check_calls(self, conversation: Conversation, made: LearnedText) -> None:
        """Raise ValueError where a call is to be learned and the template does not write it.

        Such an answer would be learned as silence.
        """
        learned = "".join(made.text[start:stop] for start, stop in made.learned or ())
        call: Mapping[str, Any]
        for number, turn in enumerate(conversation.turns):
            for call in turn.message.get("tool_calls", ()) if turn.learned else ():
                function = call.get("function", call)
                name = function.get("name", "")
                arguments: Mapping[str, Any] = function.get("arguments") or {}
                signs = (name, *arguments)
                # Some templates name the function before what is learned, and some not at all.
                if any(sign in learned for sign in signs) or any(
                    sign in self._text(replace(conversation, tools=None), [turn.message])
                    for sign in signs
                ):
                    continue
                raise ValueError(
                    f"message {number + 1}: the chat template does not write the call of"
                    f" {name!r}; use another template (data.chat_template)"
                )

    def _written(
        self, conversation: Conversation, messages: list[Message]
    ) -> tuple[list[Message], str]:
        """Return the messages as the template takes them, and their text.

        Some templates take the arguments of calls as objects, others as JSON strings: those fail
        with objects, or write them as Python does.
        """
        try:
            encoded = encoded_arguments(messages)
        except TypeError as error:  # such as a date in a column
            raise ValueError(
                f"the arguments of a call cannot be written as JSON: {error}"
            ) from error
        try:
            whole = self._text(conversation, messages)
        except ValueError:
            if encoded == messages:
                raise
            return encoded, self._text(conversation, encoded)
        shown = [text for each in arguments_of(messages) if (text := repr(each)) in whole]
        if shown:
            other = self._text(conversation, encoded)
            if not any(text in other for text in shown):
                return encoded, other
        return messages, whole

    def _check_roles(self, messages: Sequence[Message], whole: str) -> None:
        """Raise ValueError where a message has a role that the template leaves out."""
        for number, message in enumerate(messages):
            content = message.get("content", "")
            known = message["role"] in self.words or not isinstance(content, str)
            if not known and content.strip() and content.strip() not in whole:
                raise ValueError(
                    f"message {number + 1}: the chat template does not write messages of"
                    f" {message['role']!r}; rename the role, or use another template"
                    " (data.chat_template)"
                )

    def asked(self, text: str) -> str:
        """Render a user's message with the generation prompt.

        Raises:
            ConfigError: the template refuses it.
        """
        empty = Conversation(turns=(), variables={})
        try:
            return self._text(empty, [{"role": "user", "content": text}], ask=True)
        except ValueError as error:
            raise ConfigError(f"data.chat_template: {error}") from error

    def _text(
        self, conversation: Conversation, messages: Sequence[Message], *, ask: bool = False
    ) -> str:
        known: dict[str, Any] = {
            **self.tokens,
            **conversation.variables,
            "messages": messages,
            "tools": conversation.tools,
            "documents": conversation.documents,
            "add_generation_prompt": ask,
        }
        try:
            text = self.template.render(known)
        except Exception as error:  # a program of others may raise anything, MemoryError too
            raise ValueError(
                f"the chat template refuses it: {type(error).__name__}: {error}"
            ) from error
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplates:
    """The templates of a model by name, of which a record gets one as in transformers."""

    named: Mapping[str, ChatTemplate]
    chosen: str | None = None
    """Name that the user has chosen."""

    @classmethod
    def of(
        cls,
        sources: Mapping[str, str],
        *,
        tokens: Mapping[str, str],
        ends: Ends,
        chosen: str | None = None,
    ) -> ChatTemplates:
        """Compile all. Raises ConfigError.

        Args:
            sources: Jinja sources by name.
            tokens: special tokens by name.
            ends: texts that end a turn.
            chosen: name of the template to use. None: the default one.
        """
        made = {
            name: ChatTemplate.of(source, tokens=tokens, ends=ends)
            for name, source in sources.items()
        }
        if chosen is None and _DEFAULT not in made:
            raise ConfigError(
                "data.chat_template: the model has several chat templates and no default; name one"
                f" of {', '.join(sorted(made))}"
            )
        return cls(named=made, chosen=chosen)

    @property
    def source(self) -> str:
        """All sources and the choice, for a digest."""
        if list(self.named) == [_DEFAULT]:
            return self.named[_DEFAULT].source
        sources = {name: each.source for name, each in self.named.items()}
        return json.dumps([self.chosen, sources], sort_keys=True)

    def for_tools(self, tools: Any) -> ChatTemplate:
        """Return the template of a record with these tools. None: without tools."""
        if self.chosen is not None:
            return self.named[self.chosen]
        name = _FOR_TOOLS if tools is not None and _FOR_TOOLS in self.named else _DEFAULT
        return self.named[name]


def _with_widths(filter_: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that refuses huge widths."""

    @wraps(filter_)
    def refusing(*args: Any, **kwargs: Any) -> Any:
        values = (*args[1:], *kwargs.values())
        if filter_ is FILTERS["format"]:
            _refuse_format(str(args[0]), values)
        else:
            _refuse_numbers(values)
        return filter_(*args, **kwargs)

    return refusing


def _refuse_format(text: str, values: Iterable[Any]) -> None:
    """Refuse a format string with a width or precision that makes a text of gigabytes.

    Args:
        text: the format string.
        values: what is written; `%*d` and `{:{w}}` take widths from them.

    Raises:
        SecurityError: it has one.
    """
    if widths := _WIDTH.search(text):
        raise SecurityError(f"a width in the format {widths[0]}")
    if _WIDTH_FROM_VALUES.search(text):
        _refuse_numbers(values)


def _refuse_numbers(values: Iterable[Any]) -> None:
    """Refuse whole numbers that make a text of gigabytes as a width.

    Raises:
        SecurityError: one of the values is too large.
    """
    for value in values:
        if isinstance(value, int) and abs(value) > _MAX_REPEATED:
            raise SecurityError(f"an argument of {value}")


def _repetition(left: Any, right: Any) -> int:
    """Return how many entries a product of a list or text has, or 0 if it is one of numbers."""
    for entries, times in ((left, right), (right, left)):
        if hasattr(entries, "__len__") and isinstance(times, int):
            return len(entries) * times
    return 0


def _check_characters(conversation: Conversation) -> None:
    """Raise ValueError where a text has a character that marks what is learned."""
    said = (conversation.messages, conversation.tools, conversation.documents)
    texts = json.dumps(
        [*said, dict(conversation.variables)], ensure_ascii=False, default=str, skipkeys=True
    )
    mark = next((each for each in (_BEGIN, _END, *MARKER) if each in texts), None)
    if mark is not None:
        raise ValueError(
            f"a text has the noncharacter U+{ord(mark):04X}, which Unicode keeps for programs;"
            " remove it"
        )


def _words(tree: nodes.Node) -> Iterator[str]:
    """Yield every name of a field, and every string."""
    yield from (node.attr for node in tree.find_all(nodes.Getattr))
    for node in tree.find_all(nodes.Const):
        if isinstance(node.value, str):
            yield node.value


def _learned_marks(
    conversation: Conversation, messages: list[Message], whole: str, write: Any
) -> set[int] | None:
    """Return the numbers of the marked parts that are learned, or None for all of them.

    Raises:
        ValueError: it is not clear which message a part belongs to, or there are too many.
    """
    spoken = [turn for turn in conversation.turns if turn.message["role"] == ASSISTANT]
    if all(turn.learned for turn in spoken):
        return None
    check_length(whole, messages, answers=len(spoken))
    learned: set[int] = set()
    before = 0
    for number, turn in enumerate(conversation.turns):
        if turn.message["role"] != ASSISTANT:
            continue
        until = write(messages[: number + 1]).count(_BEGIN)
        if turn.learned:
            learned |= set(range(before, until))
        before = until
    if before != whole.count(_BEGIN):
        raise ValueError(
            "a message is not to be learned, and the chat template's {% generation %} marks cannot"
            " be matched with the messages; remove the flag, or use another template"
            " (data.chat_template)"
        )
    return learned


def _unmarked(marked: str, *, only: set[int] | None) -> LearnedText:
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for number, piece in enumerate(marked.split(_BEGIN)):
        generated, mark, rest = piece.partition(_END)
        if number and mark and generated and (only is None or number - 1 in only):
            spans.append((length, length + len(generated)))
        pieces += [generated, rest]
        length += len(generated) + len(rest)
    return LearnedText("".join(pieces), tuple(spans))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 - the order is that of transformers
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002 - the same
) -> str:
    """Encode as JSON like transformers, without escapes for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _no_clock(form: str) -> str:
    """Return a fixed date, because today's date in a prompt would change the tokens tomorrow."""
    return datetime(2025, 1, 1, tzinfo=UTC).strftime(form)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
