"""Questions of all callers: whose objects are kept, who waits, and who is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from drumline.kube.credentials import Credentials, Token
from drumline_cli.decide.cycle import read_policy
from drumline_cli.decide.live_objects import LiveObjects, documents
from drumline_cli.decide.what_if import MoreQuota, WhatIfAnswer
from drumline_cli.errors import Busy, NotAnswered
from drumline_cli.manifests import ManifestDocument
from drumline_console.ui.questions import BASELINE_SECONDS, MOST_WAITING, Questions
from tests.unit.console.ui.shown import GROUPS
from tests.unit.console.ui.timers import Timers
from tests.unit.overview.objects import NOW, a_queue

ASKED = MoreQuota(queue="research", pool="gpus", gpus=8)


class Objects:
    """A cluster that says who read it, and answers once it is let."""

    def __init__(self) -> None:
        self.readers: list[str] = []
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self.goes_on.set()
        self.manifests = documents(
            [{"apiVersion": GROUPS["TrainingQueue"], **a_queue("research")}], as_of=NOW
        )

    async def __call__(self, credentials: Credentials) -> LiveObjects:
        self.readers.append(credentials.namespace)
        self.begun.set()
        await self.goes_on.wait()
        return LiveObjects(manifests=self.manifests)


@pytest.fixture
def objects() -> Objects:
    return Objects()


@pytest.fixture
def timers() -> Timers:
    return Timers()


@pytest.fixture
def questions(objects: Objects, timers: Timers) -> Questions:
    return Questions(read_policy(None), read=objects, after=timers)


async def ask(questions: Questions, caller: str, *, namespace: str = "default") -> WhatIfAnswer:
    credentials = Credentials(server="http://h", token=Token(lambda: None), namespace=namespace)
    share = caller.partition("/")[0]
    return await questions.answer(
        ASKED, caller=caller.encode(), share=share, credentials=credentials
    )


async def refusal(questions: Questions, caller: str) -> str:
    """What is said at once."""
    asked = asyncio.create_task(ask(questions, caller))
    await settled()
    assert asked.done()
    error = asked.exception()
    assert isinstance(error, Busy)
    return str(error)


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_caller_is_answered_from_the_same_objects_whatever_his_namespace(
    questions: Questions, objects: Objects
) -> None:
    for number in range(3):
        await ask(questions, "ada", namespace=f"n{number}")
    assert objects.readers == ["n0"]


async def test_objects_are_kept_for_one_caller_alone(
    questions: Questions, objects: Objects, timers: Timers
) -> None:
    for caller in ("ada", "bob", "ada"):
        await ask(questions, caller, namespace=caller)
    assert objects.readers == ["ada", "bob", "ada"]
    assert [timer.cancelled for timer in timers.running] == [True, True, False]


async def test_objects_go_by_themselves(
    questions: Questions, objects: Objects, timers: Timers
) -> None:
    await ask(questions, "ada")
    assert [timer.seconds for timer in timers.running] == [BASELINE_SECONDS]
    timers.go_off()
    assert questions._kept._value is None
    await ask(questions, "ada")
    assert len(objects.readers) == 2


async def test_what_a_caller_has_changed_is_read_again_for_him(
    questions: Questions, objects: Objects
) -> None:
    await ask(questions, "ada")
    questions.changed_by(b"bob")
    await ask(questions, "ada")
    assert len(objects.readers) == 1
    questions.changed_by(b"ada")
    await ask(questions, "ada")
    assert len(objects.readers) == 2


async def test_one_question_of_a_caller_waits_and_so_many_of_all(
    questions: Questions, objects: Objects
) -> None:
    objects.goes_on.clear()
    asked = [asyncio.create_task(ask(questions, "ada"))]
    await objects.begun.wait()
    asked.append(asyncio.create_task(ask(questions, "ada")))
    await settled()
    assert "of yours" in await refusal(questions, "ada")
    assert "of yours" in await refusal(questions, "ada/another token")
    callers = (f"caller {number}" for number in range(MOST_WAITING - 1))
    asked += [asyncio.create_task(ask(questions, caller)) for caller in callers]
    await settled()
    assert "Too many" in await refusal(questions, "bob")
    objects.goes_on.set()
    await asyncio.gather(*asked)
    await ask(questions, "bob")


async def test_who_has_gone_waits_no_more(questions: Questions, objects: Objects) -> None:
    objects.goes_on.clear()
    first = asyncio.create_task(ask(questions, "ada", namespace="ada"))
    await objects.begun.wait()
    gone = asyncio.create_task(ask(questions, "bob", namespace="bob"))
    await settled()
    gone.cancel()
    await asyncio.wait([gone])
    last = asyncio.create_task(ask(questions, "bob", namespace="bob again"))
    await settled()
    objects.goes_on.set()
    await asyncio.gather(first, last)
    assert objects.readers == ["ada", "bob again"]


async def test_the_next_waits_for_the_computation_of_who_has_gone(
    questions: Questions, objects: Objects
) -> None:
    loop, begun, goes_on = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    class Slow(tuple[ManifestDocument, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[ManifestDocument]:
            loop.call_soon_threadsafe(begun.set)
            goes_on.wait()
            return super().__iter__()

    objects.manifests = Slow(objects.manifests)
    gone = asyncio.create_task(ask(questions, "ada", namespace="ada"))
    await begun.wait()
    gone.cancel()
    following = asyncio.create_task(ask(questions, "bob", namespace="bob"))
    await settled()
    try:
        assert objects.readers == ["ada"]
    finally:
        goes_on.set()
    await following
    assert gone.cancelled()
    assert objects.readers == ["ada", "bob"]


async def test_after_a_refusal_the_next_has_its_turn() -> None:
    async def read(_credentials: Credentials) -> LiveObjects:
        raise NotAnswered("nodes: not allowed to read")

    questions = Questions(read_policy(None), read=read)
    for _ in range(2):
        with pytest.raises(NotAnswered, match="not allowed"):
            await ask(questions, "ada")
