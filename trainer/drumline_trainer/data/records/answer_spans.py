"""Search for the assistant's answers in a rendered conversation. Pure.

The conversation is rendered up to an answer with the generation prompt, and after it. An answer
starts after the prompt, and ends with the token that ends its turn.

    <|user|>How many?<|end|><|assistant|>Two.<|end|>
                                         ^^^^^^^^^^^

Some templates have a generation prompt that an answer without thoughts does not contain, such as
`<think>`, or write a past answer differently from the last one. For these the answer is found by a
conversation with a marker in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, Protocol

from drumline_trainer.data.records.messages import ASSISTANT, Message

MARKER: Final = "\ufdd2\ufdd3"
"""Noncharacters. Texts that have them are refused."""
_ADVICE: Final = (
    "mark what is learned by {% generation %} in a template of your own (data.chat_template)"
)
MOST_MESSAGES: Final = 5_000_000
"""Most messages that are rendered to find the answers of a conversation: a few seconds."""
MOST_CHARACTERS: Final = 10_000_000_000
"""Most characters that are rendered for it."""


class Write(Protocol):
    """Render messages. `ask` adds the words that ask for an answer."""

    def __call__(self, messages: Sequence[Message], /, *, ask: bool = False) -> str:
        """Return the text. Raises ValueError: the template refuses the messages."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Texts of tokens at the end of a turn."""

    stops: tuple[str, ...] = ()
    """Tokens that end an answer: the end of texts, and those of the generation settings."""
    special: frozenset[str] = frozenset()
    """All special tokens. What follows one at the end of a turn is not learned."""
    tail: str = ""
    """Text that the template writes after an answer that nothing follows."""

    def of_template(self, write: Write) -> Ends:
        """Add the tail of a template. A template that refuses a short conversation has none."""
        marked = _marked([{"role": "user", "content": "?"}], 1, write)
        return replace(self, tail=marked[1] if marked else "")

    @property
    def turn(self) -> str:
        """The beginning of the tail, up to the special token that ends a turn; maybe empty."""
        gap = len(self.tail) - len(self.tail.lstrip())
        ends = [end for end in (*self.stops, *self.special) if self.tail.startswith(end, gap)]
        return self.tail[: gap + len(max(ends, key=len))] if ends else ""


def answer_spans(
    whole: str, messages: Sequence[Message], learned: Sequence[bool], *, write: Write, ends: Ends
) -> list[tuple[int, int]]:
    """Start and stop of each learned answer, in characters of `whole`.

    Args:
        whole: the rendered conversation.
        messages: its messages.
        learned: whether each message is trained.
        write: renders messages.
        ends: texts that end a turn.

    Raises:
        ValueError: an answer cannot be found, or the conversation is too long.
    """
    check_length(whole, messages, answers=sum(learned))
    return [
        _span(whole, messages, turn, write=write, ends=ends)
        for turn, counts in enumerate(learned)
        if counts
    ]


def check_length(whole: str, messages: Sequence[Message], *, answers: int) -> None:
    """Raise ValueError where one text for each of many answers takes too long to render."""
    if answers * len(messages) > MOST_MESSAGES or answers * len(whole) > MOST_CHARACTERS:
        raise ValueError(
            f"the conversation has {len(messages)} messages and {len(whole)} characters, which are"
            f" too many to find its {answers} answers; divide it into several records"
        )


def _span(
    whole: str, messages: Sequence[Message], turn: int, *, write: Write, ends: Ends
) -> tuple[int, int]:
    asked = write(messages[:turn], ask=True) if turn else None
    marked = None
    if asked is not None and whole.startswith(asked):
        start = len(asked)
    else:
        marked = _marked(messages, turn, write)
        kept = not turn or whole.startswith(write(messages[:turn]))
        start = _start_by_marker(whole, marked, asked or "") if kept else None
        if start is None:
            raise ValueError(
                "the chat template writes what comes before an answer otherwise once the answer is"
                f" there; {_ADVICE}"
            )
    until = write(messages[: turn + 1])
    if whole.startswith(until) and len(until) >= start:
        stop = len(until)
    else:
        stop = _stop_by_marker(whole, marked or _marked(messages, turn, write), start)
        if stop is None:
            stop = _after_first(whole, start, ends.stops)  # some shorten thoughts of the past
        if stop is None:
            raise ValueError(
                f"the chat template writes an answer otherwise once something follows it; {_ADVICE}"
            )
    return start, _with_end(whole, start, stop, ends)


def _marked(messages: Sequence[Message], turn: int, write: Write) -> tuple[str, str] | None:
    """Return the texts before and after an answer. None: the template does not show the answer."""
    marker: Message = {"role": ASSISTANT, "content": MARKER}
    try:
        text = write([*messages[:turn], marker, *messages[turn + 1 :]])
    except ValueError:
        return None
    before, mark, after = text.partition(MARKER)
    return (before, after) if mark else None


def _start_by_marker(whole: str, marked: tuple[str, str] | None, asked: str) -> int | None:
    """Return where the answer begins: after the marker and white space that the question shares."""
    if marked is None or not whole.startswith(marked[0]):
        return None
    start = len(marked[0])
    if not asked.startswith(marked[0]):
        return start
    pairs = zip(whole[start:], asked[start:], strict=False)
    shared = takewhile(lambda pair: pair[0] == pair[1] and pair[0].isspace(), pairs)
    return start + sum(1 for _ in shared)


def _stop_by_marker(whole: str, marked: tuple[str, str] | None, start: int) -> int | None:
    if marked is None or not whole.endswith(marked[1]):
        return None
    stop = len(whole) - len(marked[1])
    return stop if stop >= start else None


def _after_first(whole: str, start: int, texts: Sequence[str]) -> int | None:
    places = [(place, text) for text in texts if text and (place := whole.find(text, start)) >= 0]
    if not places:
        return None
    place, text = min(places)
    return place + len(text)


def _with_end(whole: str, start: int, stop: int, ends: Ends) -> int:
    """Move the stop to the end of the token that ends the turn, where there is one."""
    if ends.turn:
        if whole[start:stop].endswith(ends.tail):  # some write the end of texts after the turn's
            return stop - len(ends.tail) + len(ends.turn)
        if whole.startswith(ends.turn, stop):
            return stop + len(ends.turn)
    answer = whole[start:stop].rstrip()
    if any(answer.endswith(end) for end in ends.special):
        return start + len(answer)
    rest = whole[stop:]
    gap = len(rest) - len(rest.lstrip())
    end = next((end for end in ends.stops if rest.startswith(end, gap)), None)
    return stop if end is None else stop + gap + len(end)
