"""Where two decisions of the scheduler differ, a line each: `blocked[team/a].reason: X, now Y`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any, Final, cast

from drumline.scheduling.decisions import Decisions
from drumline_trainer.contract import plain

_LONGEST: Final = 160


def differences(before: Decisions, after: Decisions) -> list[str]:
    """Every field that is not the same; empty when the decisions are equal."""
    return [plain(line) for line in _compare("", before, after)]


def _compare(path: str, before: Any, after: Any) -> Iterator[str]:
    if before == after:
        return
    if is_dataclass(before) and type(before) is type(after):
        for field in fields(before):
            below = f"{path}.{field.name}" if path else field.name
            yield from _compare(below, getattr(before, field.name), getattr(after, field.name))
    elif all(hasattr(item, "uid") for item in (*_listed(before), *_listed(after))):
        yield from _compare_keyed(path, _listed(before), _listed(after))
    else:
        yield f"{path}: {_shown(before)}, now {_shown(after)}"


def _listed(value: Any) -> tuple[Any, ...]:
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


def _compare_keyed(path: str, before: tuple[Any, ...], after: tuple[Any, ...]) -> Iterator[str]:
    """Two lists of decisions, matched by the uid of their job."""
    was, now = ({item.uid: item for item in side} for side in (before, after))
    for uid in [*was, *(uid for uid in now if uid not in was)]:
        key = (was.get(uid) or now[uid]).key
        if uid not in now:
            yield f"{path}[{key}]: no more"
        elif uid not in was:
            yield f"{path}[{key}]: new: {_shown(now[uid])}"
        else:
            yield from _compare(f"{path}[{key}]", was[uid], now[uid])
    shared = [uid for uid in was if uid in now]
    if shared != [uid for uid in now if uid in was]:
        yield f"{path}: in another order"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
