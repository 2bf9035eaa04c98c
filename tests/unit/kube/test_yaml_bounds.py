"""Bounds of YAML: depth and aliases, beside PyYAML's own values, without a loader's recursion."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml

from drumline.kube.yaml_bounds import MANIFESTS, YamlBounds, excess

BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{last}'] * 9)}]\n"
    for last, name in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "levels deep"),
        ("a: " + "{a: " * 50_000, "levels deep"),
        ("- " * 129 + "x", "levels deep"),
        # aliases add the levels that their anchors have
        ("a: &a " + "[" * 100 + "]" * 100 + "\nb: " + "[" * 40 + "*a" + "]" * 40, "levels deep"),
        (BOMB, "unfold to more than 1000000 values"),
        ("a: &a [*a]", "contains itself"),
        ("a: &a {b: [1, {c: *a}]}", "contains itself"),
    ],
)
def test_what_would_end_or_fill_the_process_is_named(text: str, said: str) -> None:
    problem = excess(text, MANIFESTS)
    assert problem is not None
    assert said in problem


@pytest.mark.parametrize(
    "text",
    [
        "[" * 128 + "]" * 128,
        "a: &a [1]\nb: *a\n---\nc: &a {d: 1}\ne: *a\n",
        "x: &x 1\ny: [*x, *x]",
        "",
        "a: [1",  # not YAML: the loader has the words for it
        "a: *unknown",
        "a: \0",
    ],
)
def test_what_a_loader_can_read_or_refuse_is_left_to_it(text: str) -> None:
    assert excess(text, MANIFESTS) is None


def test_values_are_counted_as_the_loader_makes_them() -> None:
    dice = random.Random(3)
    for _ in range(200):
        value = a_value(dice, 5)
        # PyYAML writes an alias for each value that appears twice
        text = yaml.dump([value, value, [value]])
        most = size(yaml.safe_load(text))
        deepest = levels(yaml.safe_load(text))
        assert excess(text, YamlBounds(depth=deepest, unfolded=most)) is None
        assert excess(text, YamlBounds(depth=deepest - 1, unfolded=most)) is not None
        if "*" in text:
            assert excess(text, YamlBounds(depth=deepest, unfolded=2 * size(value) - 1))
            assert excess(text, YamlBounds(depth=deepest, unfolded=2 * size(value))) is None


def test_values_of_the_text_itself_have_a_bound() -> None:
    assert excess("[1, 2, 3]", YamlBounds(depth=9, unfolded=0, values=4)) is None
    assert excess("[1, 2, 3]", YamlBounds(depth=9, unfolded=0, values=3)) is not None


def a_value(dice: random.Random, depth: int) -> Any:
    kind = dice.choice(("list", "map", "text")) if depth else "text"
    if kind == "text":
        return dice.choice(("a", "b", 7, None))
    children = [a_value(dice, depth - 1) for _ in range(dice.randint(1, 3))]
    return children if kind == "list" else dict(zip("klm", children, strict=False))


def size(value: Any) -> int:
    """Values, with keys."""
    if isinstance(value, dict):
        return 1 + sum(1 + size(each) for each in value.values())
    return 1 + sum(map(size, value)) if isinstance(value, list) else 1


def levels(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value
    return 1 + max(map(levels, children)) if isinstance(value, (dict, list)) else 0
