"""Requests and replies that get lost, at every moment of a save; two that want the same."""

from __future__ import annotations

import pytest

from drumline_trainer.checkpoint.commit import StorageFailed, Superseded
from drumline_trainer.checkpoint.errors import CheckpointError, StaleMembershipError
from tests.object_store import ObjectStore
from tests.store_proxy import Fate, Proxy, Request
from tests.unit.trainer.checkpoint.bucket.gang import Gang, opened, restored

pytestmark = [pytest.mark.usefixtures("alone"), pytest.mark.extended(keep=6)]


def gang(url: str, *membership: int, claim: str = "0a", retries: int = 0) -> Gang:
    return Gang.claimed(lambda: opened(url, *membership, claim=claim, retries=retries))


KINDS = {
    "an upload begins": 0,
    "its part": 1,
    "its end": 2,
    "the manifest": 6,
    "the commit": 8,
}
"""One of each kind among the requests of a save: two files of three, two small ones, the commit."""
EVERY = range(9)


def test_a_save_makes_these_requests(url: str, proxy: Proxy) -> None:
    saving = gang(url)
    proxy.seen.clear()
    saving.save(1)
    writes = [request for request in proxy.seen if request.writes]
    assert len(writes) == len(EVERY)
    assert [each.conditional for each in writes] == [False] * 8 + [True]


@pytest.mark.parametrize(
    ("fate", "number"),
    [
        *(pytest.param(Fate.LOST, number, id=f"before request {number}") for number in EVERY),
        *(pytest.param(Fate.REPLY_LOST, at, id=f"behind {name}") for name, at in KINDS.items()),
    ],
)
def test_a_save_that_is_killed_leaves_the_step_before_or_the_new_one(  # noqa: PLR0917 - fixtures
    url: str, proxy: Proxy, store: ObjectStore, prefix: str, fate: Fate, number: int
) -> None:
    saving = gang(url, 1, claim="0a")
    saving.save(1)
    proxy.strike(number, fate, from_then_on=True)
    saving.try_to_save(2)
    proxy.fate = lambda _: Fate.DONE
    done = fate is Fate.REPLY_LOST and number == KINDS["the commit"]
    assert restored(opened(url)) == (2 if done else 1)
    again = gang(url, 2, claim="0b")
    left = {name.split("/")[0] for name in store.objects(prefix) if name.startswith("step-")}
    assert len(left) == (2 if done else 1)
    assert restored(again.storages[0]) == (2 if done else 1)
    again.save(2)
    assert restored(opened(url)) == 2


@pytest.mark.parametrize("number", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("fate", [Fate.REPLY_LOST, Fate.BUSY])
def test_a_request_that_is_made_again_fails_no_save(
    url: str, proxy: Proxy, fate: Fate, number: int
) -> None:
    saving = gang(url, retries=2)
    proxy.strike(number, fate)
    saving.save(1)
    assert sum(request.writes for request in proxy.seen) >= len(EVERY)
    proxy.fate = lambda _: Fate.DONE
    assert restored(opened(url)) == 1


@pytest.mark.parametrize("number", [KINDS["its end"], KINDS["the commit"]])
def test_a_reply_that_is_lost_for_good_is_looked_up(url: str, proxy: Proxy, number: int) -> None:
    saving = gang(url, retries=0)
    proxy.strike(number, Fate.REPLY_LOST)
    saving.save(1)
    proxy.fate = lambda _: Fate.DONE
    assert restored(opened(url)) == 1


@pytest.mark.parametrize("fate", [Fate.REPLY_LOST, Fate.LOST])
def test_a_commit_of_which_nothing_is_known_is_deleted_only_once_it_is(
    url: str, proxy: Proxy, store: ObjectStore, prefix: str, fate: Fate
) -> None:
    """The reply is lost, and that to the look at the index behind it."""
    saving = gang(url)
    lost: list[Request] = []

    def lose(request: Request) -> Fate:
        if request.conditional or len(lost) == 1:
            lost.append(request)
            return {1: fate, 2: Fate.LOST}.get(len(lost), Fate.DONE)
        return Fate.DONE

    proxy.fate = lose
    outcome = saving.try_to_save(1)
    proxy.fate = lambda _: Fate.DONE
    assert isinstance(outcome, StorageFailed), outcome
    assert [request.method for request in lost] == ["PUT", "GET"]
    done = fate is Fate.REPLY_LOST
    assert restored(opened(url)) == (1 if done else None)
    saving.save(2)
    assert saving.storages[0].steps() == ([2, 1] if done else [2])
    places = {name.split("/")[0] for name in store.objects(prefix) if name.startswith("step-")}
    assert len(places) == (2 if done else 1)


def test_a_commit_that_a_claim_has_followed_is_not_deleted(url: str, proxy: Proxy) -> None:
    """Its reply is lost, and what it looks at behind that is the index of the claim."""
    old = gang(url, 1, claim="0a")
    new = opened(url, 2, claim="0b")
    committed: list[Request] = []

    def claim_behind(request: Request) -> Fate:
        if request.conditional and not committed:
            committed.append(request)
            return Fate.REPLY_LOST
        if len(committed) == 1:
            committed.append(request)
            proxy.lock.release()  # the claim makes requests of its own
            new.claim()
            proxy.lock.acquire()
        return Fate.DONE

    proxy.fate = claim_behind
    outcome = old.try_to_save(1)
    proxy.fate = lambda _: Fate.DONE
    assert isinstance(outcome, Superseded), outcome
    assert new.steps() == [1]
    assert restored(new) == 1


def test_a_claim_whose_reply_is_lost_is_known_again(url: str, proxy: Proxy) -> None:
    proxy.strike(0, Fate.REPLY_LOST)
    first = gang(url)
    first.save(1)
    proxy.strike(0, Fate.REPLY_LOST)
    second = gang(url, 2, claim="0b")
    second.save(2)
    assert second.storages[0].steps() == [2, 1]


def test_a_claim_between_the_look_and_the_commit_refuses_the_commit(url: str, proxy: Proxy) -> None:
    old = gang(url, 1, claim="0a")
    old.save(1)
    new = opened(url, 2, claim="0b")
    claimed: list[int] = []

    def claim_first(request: Request) -> Fate:
        """The index has been read, and its conditional put is on its way."""
        if request.conditional and not claimed:
            claimed.append(1)
            proxy.lock.release()  # the claim makes requests of its own
            new.claim()
            proxy.lock.acquire()
        return Fate.DONE

    proxy.fate = claim_first
    outcome = old.try_to_save(2)
    assert claimed
    assert isinstance(outcome, Superseded), outcome
    assert new.steps() == [1]
    assert restored(new) == 1


def test_of_two_that_claim_at_once_the_older_one_loses(url: str, proxy: Proxy) -> None:
    gang(url, 1, claim="0a").save(1)
    newer = opened(url, 3, claim="0c")
    claimed: list[int] = []

    def claim_first(request: Request) -> Fate:
        if request.conditional and not claimed:
            claimed.append(1)
            proxy.lock.release()
            newer.claim()
            proxy.lock.acquire()
        return Fate.DONE

    proxy.fate = claim_first
    with pytest.raises(StaleMembershipError, match=r"generation 2\.0 was replaced by 3\.0"):
        opened(url, 2, claim="0b").claim()
    assert newer.ownership_error() is None


def test_what_a_later_owner_is_writing_is_not_deleted_by_an_earlier_claim(
    url: str, proxy: Proxy
) -> None:
    """Generation 2 has claimed, and deletes what is left over only once generation 3 writes."""
    gang(url, 1, claim="0a").storages[0].begin(1).write_small({"manifest.json": b""})
    newer = Gang([opened(url, 3, claim="0c") for _ in range(2)])
    conditional: list[Request] = []

    def write_first(request: Request) -> Fate:
        """The second put on a condition tries the store out: the claim is done."""
        conditional.extend([request] * request.conditional)
        if len(conditional) == 2:
            conditional.append(request)
            proxy.lock.release()
            newer.storages[0].claim()
            newer.storages[0].begin(4).write_small({"manifest.json": b"written"})
            proxy.lock.acquire()
        return Fate.DONE

    proxy.fate = write_first
    opened(url, 2, claim="0b").claim()
    proxy.fate = lambda _: Fate.DONE
    place = newer.storages[1].begin(4).place
    assert newer.storages[0].at(place).read_small("manifest.json", limit=9) == b"written"


@pytest.mark.parametrize("ignored", ["If-None-Match", "If-Match"])
def test_a_store_that_ignores_conditions_is_refused(url: str, proxy: Proxy, ignored: str) -> None:
    gang(url, 1).save(1)
    conditional: list[Request] = []

    def ignore(request: Request) -> Fate:
        """The first of a claim is its own, then come the two that have to be refused."""
        if request.conditional:
            conditional.append(request)
            if len(conditional) == (2 if ignored == "If-None-Match" else 3):
                return Fate.PRETENDED
        return Fate.DONE

    proxy.fate = ignore
    with pytest.raises(CheckpointError, match=f"the store ignores {ignored} of a put"):
        opened(url, 2, claim="0b").claim()
