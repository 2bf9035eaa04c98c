"""Rejections and their messages: short, with figures, names and a remedy."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from difflib import SequenceMatcher
from functools import lru_cache
from heapq import nlargest
from itertools import repeat
from operator import add, attrgetter
from typing import Final

from drumline_scheduler.decisions import MAX_MESSAGE_CHARS, Blocked, BlockReason, Remedy, RemedyKind
from drumline_scheduler.model import Gang

OWN_PODS: Final = "its own ending pods"
"""Stands in a message for pods of the rejected gang itself."""
MAX_NAMES: Final = 3
"""Number of blockers that a message names. Further ones are only counted."""

_MOST_COMPARED: Final = 8
"""Names that are compared letter by letter with a wrong one."""
_MOST_CORRECTIONS: Final = 4096
"""Wrong names whose correction is remembered."""
_NEW: Final = object.__new__
_KEY: Final[Callable[[Blocked, str], None]] = Blocked.__dict__["key"].__set__
_UID: Final[Callable[[Blocked, str], None]] = Blocked.__dict__["uid"].__set__
_UID_OF: Final[Callable[[Gang], str]] = attrgetter("uid")
_SHARED: Final = [
    (Blocked.__dict__[name].__set__, attrgetter(name))
    for name in (field.name for field in fields(Blocked))
    if name not in ("key", "uid")
]
"""Setters and getters of the slots whose value is the same for all gangs of a rejection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A `Blocked` without a gang. Gangs of one shape share it."""

    reason: BlockReason
    message: str
    blockers: tuple[str, ...] = ()
    resource: str = "gpus"
    needed: int = 0
    available: int = 0
    remedy: Remedy | None = None

    def of(self, gang: Gang) -> Blocked:
        """Return this rejection as the answer to `gang`."""
        (blocked,) = self.of_all((gang,))
        return blocked

    def of_all(self, gangs: Sequence[Gang]) -> list[Blocked]:
        """Return this rejection as the answer to each of some gangs.

        There may be thousands of them, so each field is written for all of them by one loop in C.
        """
        first = Blocked(
            key="",
            uid="",
            reason=self.reason,
            message=bounded(self.message),
            blockers=self.blockers,
            resource=self.resource,
            needed=self.needed,
            available=self.available,
            remedy=self.remedy,
        )
        answers = list(map(_NEW, repeat(Blocked, len(gangs))))
        keys = [gang.key for gang in gangs]
        columns = [(_KEY, keys), (_UID, map(_UID_OF, gangs))]
        columns += [(write, repeat(read(first))) for write, read in _SHARED]
        for write, values in columns:
            deque(map(write, answers, values), maxlen=0)
        if not set(self.blockers).isdisjoint(keys):
            return [
                _behind_own_pods(answer) if answer.key in self.blockers else answer
                for answer in answers
            ]
        return answers


def _behind_own_pods(blocked: Blocked) -> Blocked:
    """Return the answer to a gang among whose blockers is its own name.

    Pods of an earlier attempt hold GPUs until they are gone. A job does not wait for itself.
    """
    name = re.compile(rf"(?<![\w./-]){re.escape(blocked.key)}(?![\w/-])( holds)?")
    message = name.sub(
        lambda match: f"{OWN_PODS} hold" if match.group(1) else OWN_PODS, blocked.message
    )
    blockers = tuple(key for key in blocked.blockers if key != blocked.key)
    return replace(blocked, message=bounded(message), blockers=blockers)


def noting_exempt(rejection: Rejection, *, exempt: Sequence[str]) -> Rejection:
    """Return the rejection, with the gangs that are exempt because they were preempted recently."""
    if not exempt:
        return rejection
    note = f"recently preempted, so exempt: {named(exempt)}"
    return replace(rejection, message=f"{rejection.message}; {note}")


def noting_free_only(rejection: Rejection, *, why: str) -> Rejection:
    """Return the rejection, with the reason why no gang is evicted for it, if there is one."""
    if not why:
        return rejection
    return replace(rejection, message=f"{rejection.message}; evicts no other job: {why}")


def bounded(text: str) -> str:
    """Return the text, cut if it does not fit into a condition's message."""
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def named(parts: Sequence[str]) -> str:
    """Return the first parts, and the number of further ones."""
    shown = ", ".join(parts[:MAX_NAMES])
    return shown if len(parts) <= MAX_NAMES else f"{shown} and {len(parts) - MAX_NAMES} more"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 pod`, `2 pods`."""
    return f"{count} {noun}" if count == 1 or noun == "CPU" else f"{count} {noun}s"


def request_text(*, gang: Gang, pods: int) -> str:
    """Return a request as text: `4 GPUs (2 pods of 2)`, or `3 pods` without GPUs."""
    each = gang.per_pod.gpus
    if not each:
        return counted(pods, "pod")
    total = counted(pods * each, "GPU")
    return total if pods == 1 else f"{total} ({pods} pods of {each})"


def correction(*, wrong: str, right: Iterable[str]) -> Remedy | None:
    """Return the valid name that is most similar to a wrong one, if there is any.

    Tenants may write thousands of wrong names. Only the `_MOST_COMPARED` names that share most
    pairs of letters with a wrong one are compared exactly.
    """
    nearest = _nearest(wrong, frozenset(right))
    return None if nearest is None else Remedy(kind=RemedyKind.CORRECT_NAME, where=nearest)


@lru_cache(maxsize=_MOST_CORRECTIONS)
def _nearest(wrong: str, right: frozenset[str]) -> str | None:
    names: Iterable[str] = right
    if len(right) > _MOST_COMPARED:
        pairs = _pairs(wrong)
        names = nlargest(_MOST_COMPARED, sorted(right), key=lambda name: len(pairs & _pairs(name)))
    return min(names, key=lambda name: (-_likeness(wrong, name), name), default=None)


@lru_cache(maxsize=_MOST_CORRECTIONS)
def _pairs(name: str) -> frozenset[str]:
    """Return the pairs of neighbouring letters of a name."""
    return frozenset(map(add, name, name[1:]))


def _likeness(wrong: str, right: str) -> float:
    return SequenceMatcher(None, wrong, right, autojunk=False).ratio()
