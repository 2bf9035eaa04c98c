"""Records of one kind as texts of which a part is learned."""

from __future__ import annotations

from dataclasses import dataclass

from drumline_trainer.data.records.chat_template import ChatTemplate
from drumline_trainer.data.records.kinds import Record, RecordKind, kind_of, messages_of, sides_of
from drumline_trainer.data.records.learned_text import LearnedText


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRenderer:
    """All records of a data set are of the first one's kind."""

    kind: RecordKind = RecordKind.TEXT
    field: str = "text"
    """Of texts."""
    template: ChatTemplate | None = None
    """Of conversations."""
    begin: str = ""
    """Written before a prompt: the token that texts begin with."""
    end: str = ""
    """Written after a completion, and learned: the token that texts end with."""

    def render(self, record: Record) -> tuple[LearnedText, ...]:
        """The record as one text, or of a pair as the chosen one and the rejected one.

        Raises:
            ValueError: it is of another kind, or no template can write it.
        """
        kind = kind_of(record, field=self.field)
        if kind is not self.kind:
            raise ValueError(f"{self._wanted()}; it has {', '.join(map(repr, record)) or 'none'}")
        sides = sides_of(record) if self.kind.paired else (record,)
        return tuple(self._text(side, self.kind.of_each) for side in sides)

    def _text(self, record: Record, kind: RecordKind) -> LearnedText:
        match kind:
            case RecordKind.TEXT:
                return LearnedText(record[self.field])
            case RecordKind.COMPLETION:
                prompt, answer = f"{self.begin}{record['prompt']}", record["completion"] + self.end
                learned = (len(prompt), len(prompt) + len(answer))
                return LearnedText(prompt + answer, (learned,))
            case _:
                if self.template is None:
                    raise ValueError("a conversation needs a chat template")
                return self.template.render(messages_of(record), tools=record.get("tools"))

    def _wanted(self) -> str:
        match self.kind:
            case RecordKind.TEXT:
                return f"no JSON object with a field {self.field!r} of text"
            case RecordKind.COMPLETION:
                return "no object with the texts 'prompt' and 'completion', as the first one is"
            case RecordKind.CONVERSATION:
                return (
                    "no conversation, as the first one is: an object with 'messages',"
                    " 'conversations' or 'instruction' and 'output'"
                )
            case RecordKind.PREFERRED_CONVERSATION:
                return (
                    "no pair, as the first one is: an object with messages in 'chosen', 'rejected'"
                )
            case RecordKind.PREFERRED_COMPLETION:
                return (
                    "no object with the texts 'prompt', 'chosen', 'rejected', as the first one is"
                )
