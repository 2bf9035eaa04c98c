"""Chat templates of Hugging Face: a conversation as text, and what in it the assistant says.

A template is a program of whoever published the model: it runs in Jinja's sandbox, as in
transformers. Where it marks what it generates (`{% generation %}`), that is what is learned.
Otherwise the conversation is rendered up to each of the assistant's turns, with the words that ask
for an answer, and after it: what comes between is learned, with the token that ends the turn.

    <|user|>How many?<|end|><|assistant|>Two.<|end|>
                                         ^^^^^^^^^^^
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from drumline_contract.buckets.path import AnyPath, read_file
from drumline_contract.config import ConfigError
from drumline_trainer.data.records.learned_text import LearnedText

Message = Mapping[str, Any]
TEMPLATE_FILE: Final = "chat_template.jinja"
_CONFIG_FILE: Final = "tokenizer_config.json"
_BEGIN, _END = "\ufdd0", "\ufdd1"
"""Noncharacters, which no text has: around what a template says that it generates."""
_MOST_BYTES: Final = 16 << 20


class _Generated(Extension):
    """The tag `{% generation %}`."""

    tags = {"generation"}  # noqa: RUF012 - jinja's way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    def _mark(self, caller: Any) -> str:
        return f"{_BEGIN}{caller()}{_END}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A template with the special tokens that it writes."""

    source: str
    tokens: Mapping[str, str]
    """`bos_token`, `eos_token` and the like."""
    ends: frozenset[str] = frozenset()
    """Special tokens: what follows one at the end of a turn is not learned."""
    template: jinja2.Template

    @classmethod
    def of(
        cls, source: str, *, tokens: Mapping[str, str], ends: frozenset[str] = frozenset()
    ) -> ChatTemplate:
        """Compile it. Raises ConfigError where it is no template."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generated, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        known: dict[str, Any] = {"raise_exception": _refuse, "strftime_now": _no_clock}
        environment.globals |= known
        try:
            template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"data.chat_template: is no template: {error}") from error
        return cls(source=source, tokens=tokens, ends=ends, template=template)

    def render(self, messages: Sequence[Message], *, tools: Any = None) -> LearnedText:
        """A conversation, and what in it is learned.

        Raises:
            ValueError: the template refuses it, or what the assistant says cannot be found in it.
        """
        whole = self._text(messages, tools=tools)
        if _BEGIN in whole:
            return _unmarked(whole)
        turns = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
        spans = [self._turn(whole, messages, turn, tools=tools) for turn in turns]
        return LearnedText(whole, tuple(spans))

    def asked(self, text: str) -> str:
        """What a user says, with the words that ask for an answer. Raises ConfigError."""
        try:
            return self._text([{"role": "user", "content": text}], tools=None, ask=True)
        except ValueError as error:
            raise ConfigError(f"data.chat_template: {error}") from error

    def _turn(
        self, whole: str, messages: Sequence[Message], turn: int, *, tools: Any
    ) -> tuple[int, int]:
        """Where in the whole text a turn of the assistant is."""
        asked = self._text(messages[:turn], tools=tools, ask=True) if turn else ""
        start = _common(whole, asked)
        if start < len(asked) and start < len(self._text(messages[:turn], tools=tools)):
            raise ValueError(
                "the chat template writes what comes before an answer otherwise once the answer is"
                " there; mark what is learned by {% generation %} in a template of your own"
                " (data.chat_template)"
            )
        until = self._text(messages[: turn + 1], tools=tools)
        eos = self.tokens.get("eos_token", "")
        if whole.startswith(until):
            stop = len(until)
        elif eos and (position := whole.find(eos, start)) >= 0:  # some shorten thoughts of the past
            stop = position + len(eos)
        else:
            raise ValueError(
                "the chat template writes an answer otherwise once something follows it; mark what"
                " is learned by {% generation %} in a template of your own (data.chat_template)"
            )
        answer = whole[start:stop].rstrip()
        if any(answer.endswith(end) for end in self.ends):
            stop = start + len(answer)
        return start, stop

    def _text(self, messages: Sequence[Message], *, tools: Any, ask: bool = False) -> str:
        try:
            return self.template.render(
                messages=messages, tools=tools, add_generation_prompt=ask, **self.tokens
            )
        except (jinja2.TemplateError, TypeError, AttributeError, LookupError) as error:
            raise ValueError(f"the chat template refuses it: {error}") from error


def chat_template_of(folder: AnyPath, *, file: str | None, ends: frozenset[str]) -> ChatTemplate:
    """The template of a model's folder, or the one in `file`.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    config = tokenizer_config_of(folder)
    source = config.get("chat_template")
    if isinstance(source, list):  # several by name
        named = {each.get("name"): each.get("template") for each in source}  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType] - JSON
        source = named.get("default")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JSON
    path: AnyPath = folder / TEMPLATE_FILE if file is None else Path(file)
    if file is not None or path.is_file():
        source = _read(path, field="data.chat_template")
    if not isinstance(source, str):
        raise ConfigError(
            f"data.chat_template: {folder} has no chat template, as base models have none; name a"
            " file with one, such as that of the model's Instruct release"
        )
    return ChatTemplate.of(source, tokens=special_tokens(config), ends=ends)


def tokenizer_config_of(folder: AnyPath) -> dict[str, Any]:
    """tokenizer_config.json; empty where there is none. Raises ConfigError."""
    path = folder / _CONFIG_FILE
    if not path.is_file():
        return {}
    try:
        config = json.loads(_read(path, field="model_from"))
    except ValueError as error:
        raise ConfigError(f"model_from: {path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"model_from: {path} is not a JSON object")
    return config  # pyright: ignore[reportUnknownVariableType] - JSON


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens of a tokenizer_config.json by their names there."""
    tokens: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        token = config.get(name)
        text = token.get("content") if isinstance(token, dict) else token  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - JSON
        if isinstance(text, str):
            tokens[name] = text
    return tokens


def _common(first: str, second: str) -> int:
    """Characters that both begin with."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))


def _unmarked(marked: str) -> LearnedText:
    pieces: list[str] = []
    spans: list[tuple[int, int]] = []
    length = 0
    for number, piece in enumerate(marked.split(_BEGIN)):
        generated, mark, rest = piece.partition(_END)
        if number and mark and generated:
            spans.append((length, length + len(generated)))
        pieces += [generated, rest]
        length += len(generated) + len(rest)
    return LearnedText("".join(pieces), tuple(spans))


def _read(path: AnyPath, *, field: str) -> str:
    try:
        return read_file(path, limit=_MOST_BYTES).decode()
    except OSError as error:
        raise ConfigError(f"{field}: {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{field}: {path} is not UTF-8") from error


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """As transformers does: no escapes for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _no_clock(form: str) -> str:
    """A date in a prompt would make other tokens of the same data tomorrow."""
    return datetime(2025, 1, 1, tzinfo=UTC).strftime(form)


def _refuse(message: str) -> None:
    raise jinja2.TemplateError(message)
