"""Records of one kind as texts of which a part is learned."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.data.records.chat_template import ChatTemplates
from drumline_trainer.data.records.kinds import (
    DEFAULT_FIELD,
    Record,
    RecordKind,
    conversation_of,
    kind_of,
    normalized,
    sides_of,
    unused_fields,
)
from drumline_trainer.data.records.learned_text import LearnedText, TextRecord
from drumline_trainer.data.records.messages import check_whole_record, tools_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRenderer:
    """All records of a data set are of the first one's kind."""

    kind: RecordKind = RecordKind.TEXT
    field: str = DEFAULT_FIELD
    """Field of texts."""
    templates: ChatTemplates | None = None
    """Templates of conversations."""

    def render(self, record: Record) -> TextRecord:
        """Render the record as one text, or a pair as the chosen and the rejected text.

        Raises:
            ValueError: it is of another kind, no template can write it, or it is not valid Unicode.
        """
        known = normalized(record)
        check_whole_record(known)
        kind = kind_of(known, field=self.field)
        if kind is not self.kind:
            raise ValueError(f"{self._wanted()}; it has {', '.join(map(repr, record)) or 'none'}")
        sides = sides_of(known) if self.kind.paired else (known,)
        texts = tuple(self._text(side, self.kind.of_each) for side in sides)
        for text in texts:
            _check_unicode(text.text)
        return texts

    def note(self, record: Record) -> str | None:
        """Say which part of a record is not used, or return None if all of it is."""
        if self.templates is not None and self.kind.of_each is RecordKind.CONVERSATION:
            unread = self.templates.for_tools(tools_of(record)).unread(record)
            if unread is not None:
                return unread
        return unused_fields(record, field=self.field)

    def _text(self, record: Record, kind: RecordKind) -> LearnedText:
        match kind:
            case RecordKind.TEXT:
                return LearnedText(record[self.field], framed=True)
            case RecordKind.COMPLETION:
                prompt, whole = record["prompt"], record["prompt"] + record["completion"]
                learned = (len(prompt), len(whole))
                return LearnedText(whole, (learned,), prompt=prompt, framed=True)
            case _:
                if self.templates is None:
                    raise ValueError("a conversation needs a chat template")
                template = self.templates.for_tools(tools_of(record))
                return template.render(conversation_of(record, words=template.words))

    def _wanted(self) -> str:
        match self.kind:
            case RecordKind.TEXT:
                return f"the record is no JSON object with a field {self.field!r} of text"
            case RecordKind.COMPLETION:
                wanted = "object with the texts 'prompt' and 'completion', as the first one is"
            case RecordKind.CONVERSATION:
                wanted = (
                    "conversation, as the first one is: an object with 'messages',"
                    " 'conversations' or 'instruction' and 'output'"
                )
            case RecordKind.PREFERRED_CONVERSATION:
                wanted = (
                    "pair, as the first one is: an object with messages in 'chosen', 'rejected'"
                )
            case RecordKind.PREFERRED_COMPLETION:
                wanted = "object with the texts 'prompt', 'chosen', 'rejected', as the first one is"
        return f"the record is no {wanted}"


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        code = f"\\u{ord(text[error.start]):04x}"
        raise ValueError(
            f"the text has half of a surrogate pair, {code}; remove it or write the whole character"
        ) from error
