"""The book of quota: who holds what, copies of it, and what a raised quota would give."""

from __future__ import annotations

from random import Random

import pytest

from drumline_scheduler import Queue, Role
from drumline_scheduler.quota.cohorts import CohortQuota, QueueTree
from drumline_scheduler.quota.quota_ledger import QuotaLedger
from tests.unit.scheduler.builders import gang, pod, queue

TEAM = (queue("org"), queue("a", 4, parent="org"), queue("b", 4, parent="org"))


def usage(book: QuotaLedger, name: str) -> int:
    return book.cohorts("h100").usage[book.tree.leaf_of[name]]


def test_a_gang_holds_one_size_at_a_time_its_roles_included() -> None:
    book = QuotaLedger(QueueTree(TEAM))
    gang_a = gang("x", nodes=3, gpus=1, queue="a", roles=(Role(name="l", pods=1, per_pod=pod(2)),))
    book.hold(gang=gang_a, pool="h100", size=1)
    assert usage(book, "a") == 3
    undo = book.hold(gang=gang_a, pool="h100", size=3)
    assert usage(book, "a") == 5
    undo()
    assert usage(book, "a") == 3
    assert [(held.size, held.gpus) for held in book.usage("h100").all()] == [(1, 3)]


def test_what_is_undone_was_never_there() -> None:
    book, job = QuotaLedger(QueueTree(TEAM)), gang("x", queue="a")
    undo = book.hold(gang=job, pool="h100", size=1)
    undo()
    assert usage(book, "a") == 0
    assert list(book.usage("h100").all()) == []
    with pytest.raises(KeyError, match="holds nothing of pool h100"):
        book.credit(gang=job, pool="h100")


def test_a_gang_needs_only_what_it_does_not_hold_yet() -> None:
    book = QuotaLedger(QueueTree((queue("a", 4),)))
    gang_a = gang("x", nodes=4, queue="a")
    book.hold(gang=gang_a, pool="h100", size=2)
    assert book.needs(gang=gang_a, pool="h100", size=4) == 2
    assert book.has_room(gang=gang_a, pool="h100", size=4)
    book.hold(gang=gang("y", queue="a"), pool="h100", size=1)
    assert not book.has_room(gang=gang_a, pool="h100", size=4)
    assert book.has_room(gang=gang_a, pool="h100", size=3)


def test_a_copy_is_written_on_alone() -> None:
    limited = (queue("a", 4, user_limit={"h100": 2}),)
    book = QuotaLedger(QueueTree(limited))
    book.hold(gang=gang("x", queue="a", user="u"), pool="h100", size=1)
    twin = book.copy()
    twin.hold(gang=gang("y", queue="a", user="u"), pool="h100", size=1)
    third = gang("z", queue="a", user="u")
    assert book.has_room(gang=third, pool="h100", size=1)
    assert not twin.has_room(gang=third, pool="h100", size=1)
    assert (usage(book, "a"), usage(twin, "a")) == (1, 2)


def test_equal_questions_have_equal_answers_until_something_is_written() -> None:
    book = QuotaLedger(QueueTree((queue("a", 2),)))
    book.hold(gang=gang("x", nodes=2, queue="a"), pool="h100", size=2)
    asks = [gang(name, queue="a") for name in "yz"]
    first, second = (book.exhausted(gang=ask, pool="h100", size=1) for ask in asks)
    assert first is second
    assert first is not None
    undo = book.credit(gang=gang("x", nodes=2, queue="a"), pool="h100")
    assert book.exhausted(gang=asks[0], pool="h100", size=1) is None
    undo()
    assert book.exhausted(gang=asks[0], pool="h100", size=1) == first


def trees(seed: int) -> tuple[list[Queue], Random]:
    """Queues in up to four levels with random quotas and limits."""
    random = Random(seed)

    def limit() -> dict[str, int] | None:
        return random.choice([None, {"h100": random.randint(0, 4)}])

    names = ["org", "west", "a", "b", "c"]
    parents = [None, "org", "west", random.choice(["west", "a"]), random.choice(["org", "b"])]
    return [
        queue(
            name,
            random.randint(0, 4),
            parent=parent,
            borrowing_limit=limit(),
            lending_limit=limit(),
        )
        for name, parent in zip(names, parents, strict=True)
    ], random


@pytest.mark.parametrize("seed", range(200))
def test_a_shortfall_is_the_least_raise_that_gives_the_room(seed: int) -> None:
    queues, random = trees(seed)
    tree = QueueTree(queues)
    balance = CohortQuota(tree=tree, pool="h100")
    held = {each_queue.name: random.randint(0, 5) for each_queue in queues}
    for name, gpus in held.items():
        balance.add(leaf=tree.leaf_of[name], gpus=gpus)
    name, wanted = random.choice(queues).name, random.randint(1, 8)
    raise_by = balance.shortfall(leaf=tree.leaf_of[name], gpus=wanted)
    for gpus, enough in ((raise_by, True), (raise_by - 1, False)):
        if gpus >= 0:
            assert (room_if_raised(queues, held, name=name, by=gpus) >= wanted) is enough


def room_if_raised(queues: list[Queue], held: dict[str, int], *, name: str, by: int) -> int:
    """The room in a tree in which a queue's nominal quota is so much larger."""
    raised = [
        queue(
            each_queue.name,
            each_queue.nominal["h100"] + by * (each_queue.name == name),
            parent=each_queue.parent,
            borrowing_limit=each_queue.borrowing_limit,
            lending_limit=each_queue.lending_limit,
        )
        for each_queue in queues
    ]
    tree = QueueTree(raised)
    balance = CohortQuota(tree=tree, pool="h100")
    for other, gpus in held.items():
        balance.add(leaf=tree.leaf_of[other], gpus=gpus)
    return balance.room(tree.leaf_of[name])


@pytest.mark.parametrize("seed", range(50))
def test_which_branches_would_borrow_is_what_they_have_borrowed_afterwards(seed: int) -> None:
    queues, random = trees(seed)
    tree = QueueTree(queues)
    balance = CohortQuota(tree=tree, pool="h100")
    for each_queue in queues:
        balance.add(leaf=tree.leaf_of[each_queue.name], gpus=random.randint(0, 3))
    leaf, gpus = tree.leaf_of[random.choice(queues).name], random.randint(0, 4)
    output = balance.above_with(leaf=leaf, gpus=gpus)
    balance.add(leaf=leaf, gpus=gpus)
    *below, _ = balance.paths[leaf]
    assert output == (False, *(balance.borrowed(branch) > 0 for branch in reversed(below)))
