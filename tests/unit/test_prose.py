"""The writing rules of tools/prose.py, and that its allow-list only shrinks."""

from __future__ import annotations

import pytest

from tools import prose


def rules(page: str) -> list[str]:
    return [each.rule for each in prose.page_findings("docs/page.md", page)]


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("The operator deletes the Pod. It waits for the node.", []),
        ("What a gang borrows, other queues reclaim.", ["fronted"]),
        ("What does a gang borrow from other queues?", []),
        ("By default the operator waits for a minute.", []),
        ("- Of these jobs the queue shows the newest.", ["fronted"]),
        ("One word " + "and another one " * 10 + "is too long.", ["long-sentence"]),
        ("It is short here. " * 21, ["long-paragraph"]),
        ("One is here; two is there; three is elsewhere.", ["semicolons"]),
        ("Training goes on after the fault.", ["word"]),
        ("| so many jobs | a number |", ["word"]),
        ("The text is no number at all.", ["word"]),
        ("There is no node with this label.", []),
        ("```sh\necho what goes on; echo; echo so many\n```\n", []),
        ("# What a heading may begin with", []),
    ],
)
def test_pages(page: str, expected: list[str]) -> None:
    assert rules(page) == expected


def test_a_finding_names_the_line_below_a_block_of_code() -> None:
    (result,) = prose.page_findings("docs/page.md", "```sh\na\nb\n```\n\nTraining goes on here.\n")
    assert result.place == "docs/page.md:6"


def test_code_and_addresses_are_not_counted_as_words() -> None:
    assert prose.words_outside_code("One [two](three.md).\n\n```sh\nfour five\n```\n") == 2


def test_all_pages_together_have_a_limit() -> None:
    page = "word " * (prose.MOST_USER_WORDS // 2)
    assert list(prose.size_findings({"a": page, "b": page})) == []
    assert [each.rule for each in prose.size_findings({"a": page, "b": page + "more"})] == ["size"]


def test_docstrings_and_messages() -> None:
    source = """\
class Gang:
    \'\'\'What is known of a gang.\'\'\'
    size: int
    \'\'\'Of its pods.\'\'\'

def fail():
    \'\'\'Raise an error.\'\'\'
    raise ValueError("this is no size")
"""
    results = prose.code_findings("operator/drumline/kube/gang.py", source)
    places = sorted((int(each.place.partition(":")[2]), each.rule) for each in results)
    assert places == [(2, "docstring-opener"), (4, "docstring-opener"), (8, "message-word")]


@pytest.mark.parametrize(
    ("subject", "problems"),
    [
        ("Reject checkpoints of another model", 0),
        ("reject checkpoints of another model", 1),
        ("Reject checkpoints.", 1),
        ("Reject " + "checkpoints " * 8 + "now", 1),
    ],
)
def test_subjects(subject: str, problems: int) -> None:
    assert len(prose.subject_problems(subject)) == problems


def test_a_clone_without_the_main_branch_has_no_subjects_to_check() -> None:
    assert list(prose.subject_findings("origin/there-is-no-such-branch")) == []


def test_the_allow_list_tolerates_and_only_shrinks() -> None:
    results = list(prose.page_findings("docs/page.md", "Training goes on. Training went on."))
    limits = {"word": {"docs/page.md": 9, "docs/gone.md": 3}}
    assert list(prose.above(results, limits)) == []
    assert list(prose.above(results, {})) == [("word", "docs/page.md", 2, 0)]
    assert prose.not_needed(results, limits) == [("word", "docs/page.md"), ("word", "docs/gone.md")]
    assert prose.shrunk(results, limits) == {"word": {"docs/page.md": 2}}
    assert prose.shrunk(results, {"word": {"docs/page.md": 1}}) == {"word": {"docs/page.md": 1}}
