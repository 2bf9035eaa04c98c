"""Documents that are nested too deep."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from drumline.kube import nesting
from drumline.kube.nesting import flattened


@pytest.mark.parametrize(
    ("raw", "levels", "cut"),
    [
        (b'{"a": {"b": [1]}, "c": 2}', 1, b'{"a": 0, "c": 2}'),
        (b'[[[1], "]"], {"x": "{"}]', 2, b'[[0, "]"], {"x": "{"}]'),
        (rb'{"a": "\\\"[", "b": [[]]}', 2, rb'{"a": "\\\"[", "b": [0]}'),
        (rb'{"a\\": [1], "b": "\\"}', 1, rb'{"a\\": 0, "b": "\\"}'),
        (b"7", 0, b"7"),
        (b"", 3, b""),
    ],
)
def test_what_is_deeper_becomes_zero(raw: bytes, levels: int, cut: bytes) -> None:
    assert flattened(raw, levels=levels) == cut


def test_random_documents_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = random.Random(7)
    for _ in range(300):
        monkeypatch.setattr(nesting, "_CHUNK_BYTES", dice.randint(1, 40))
        value, levels = a_value(dice, 6), dice.randint(0, 6)
        raw = json.dumps(value, ensure_ascii=dice.random() < 0.5).encode()
        assert json.loads(flattened(raw, levels=levels)) == cut_by_hand(value, levels)


def test_ten_thousand_levels() -> None:
    raw = b'{"name": "x", "deep": ' + b"[" * 10_000 + b"]" * 10_000 + b', "after": {"a": 1}}'
    value = json.loads(flattened(raw, levels=8))
    assert (value["name"], value["after"]) == ("x", {"a": 1})


def a_value(dice: random.Random, depth: int) -> Any:
    match dice.randint(0, 5 if depth else 2):
        case 0:
            return dice.randint(-9, 9)
        case 1 | 2:
            return "".join(dice.choices('a"\\{}[]é\n', k=dice.randint(0, 6)))
        case 3:
            return [a_value(dice, depth - 1) for _ in range(dice.randint(0, 3))]
        case _:
            return {str(key): a_value(dice, depth - 1) for key in range(dice.randint(0, 3))}


def cut_by_hand(value: Any, levels: int) -> Any:
    if not isinstance(value, list | dict):
        return value
    if levels == 0:
        return 0
    if isinstance(value, list):
        return [cut_by_hand(part, levels - 1) for part in value]
    return {key: cut_by_hand(part, levels - 1) for key, part in value.items()}
