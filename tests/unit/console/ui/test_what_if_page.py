"""The document of questions: what is asked by an address, and what is said to it."""

from __future__ import annotations

import pytest

from drumline_cli.decide.what_if import Change, MoreQuota, NewJob, OtherSize
from drumline_cli.errors import BadInput
from drumline_console.ui.what_if_page import in_words, question, what_if
from tests.browser.scene import objects
from tests.unit.console.ui.shown import Shown
from tests.unit.console.ui.test_pages import Audit, audited

MORE = MoreQuota(queue="research", pool="h100", gpus=64)


@pytest.mark.parametrize(
    ("fields", "change", "words"),
    [
        (
            {"ask": "queue", "queue": "q", "pool": "p", "gpus": "8"},
            MoreQuota(queue="q", pool="p", gpus=8),
            "If queue q had 8 GPUs more in pool p",
        ),
        (
            {"ask": "queue", "queue": "q", "pool": "p", "gpus": "-1"},
            MoreQuota(queue="q", pool="p", gpus=-1),
            "If queue q had 1 GPU fewer in pool p",
        ),
        (
            {"ask": "job", "job": "team/a", "nodes": "2", "priority": "urgent"},
            OtherSize(job="team/a", nodes=2, priority="urgent"),
            "If team/a requested 2 nodes with priority urgent",
        ),
        (
            {"ask": "new", "queue": "q", "nodes": "3", "gpus": "8", "priority": ""},
            NewJob(queue="q", nodes=3, gpus_per_node=8),
            "If a new job requested 3 nodes with 8 GPUs each from queue q",
        ),
    ],
)
def test_an_address_is_a_question(fields: dict[str, str], change: Change, words: str) -> None:
    assert question(fields) == change
    assert in_words(change) == words


def test_without_a_question_none_is_answered() -> None:
    assert question({"queue": "q"}) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ask": "why"}, "queue, job or new"),
        ({"ask": "queue", "pool": "p", "gpus": "8"}, "the question lacks queue"),
        ({"ask": "job", "job": "a", "nodes": "two"}, "a whole number"),
        ({"ask": "job", "job": "a", "nodes": "0"}, "from 1 to 10000"),
        ({"ask": "new", "queue": "q", "nodes": "1", "gpus": "9" * 99}, "from 0 to 64"),
    ],
)
def test_what_is_no_question_is_refused(fields: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        question(fields)


async def test_the_answer_stands_above_the_questions_that_keep_what_was_asked() -> None:
    shown = Shown(*objects())
    document = what_if(await shown.cluster(), MORE, await shown.what_if(MORE))
    text = audited(document).text
    assert "64 GPUs more in pool h100" in text
    assert "team/deepseek-sftresearch432WaitsPlacedat once" in text
    assert '<option value="research" selected="">' in document
    assert 'name="gpus" min="0" max="384" step="1" value="64"' in document


async def test_before_a_question_there_is_a_place_for_the_answer() -> None:
    document = what_if(await Shown(*objects()).cluster(), None, None)
    assert '<section id="answer" hidden="">' in document
    assert Audit(document).scripts == 1


async def test_a_question_that_changes_nothing_says_so() -> None:
    shown = Shown(*objects())
    change = MoreQuota(queue="lab", pool="h100", gpus=8)
    text = Audit(what_if(await shown.cluster(), change, await shown.what_if(change))).text
    assert "The next cycle would make the same decisions" in text
    assert "Nothing would change for 3 jobs" in text
