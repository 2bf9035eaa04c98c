"""Records of the generation an agent has already: whose push changes what."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus

import pytest

from drumline_agent.state.record_store import RecordAccepted, RecordRejected, RecordStore
from drumline_contract import GenerationRecord, Member, sign

TOKEN = b"a token"
MEMBERS = tuple(
    Member(index=index, pod_uid=f"p{index}", address=f"10.0.0.{index}", host=f"j-{index}", ranks=2)
    for index in range(2)
)
RECORD = GenerationRecord(job_uid="job", generation=3, epoch=4, members=MEMBERS)


@pytest.fixture
def book() -> RecordStore:
    """Of the first pod, which has the record."""
    book = RecordStore(token=TOKEN, job_uid="job", pod_uid="p0", index=0, lowest_generation=1)
    assert push(book, RECORD) == RecordAccepted()
    return book


def push(book: RecordStore, record: GenerationRecord) -> RecordAccepted | RecordRejected:
    body = record.encode()
    return book.offer(body, signature=sign(TOKEN, b"record", body))


def has_first_record(book: RecordStore) -> bool:
    return book.current is not None and book.current.body == RECORD.encode()


@pytest.mark.parametrize(
    "record",
    [
        replace(RECORD, epoch=5),
        replace(RECORD, epoch=9, image="trainer:2"),
        replace(RECORD, restore_step=50, restore_digest="d"),
    ],
    ids=["epoch", "image", "restore-point"],
)
def test_the_same_membership_by_a_new_leader_is_known_already(
    book: RecordStore, record: GenerationRecord
) -> None:
    assert push(book, record) == RecordAccepted()
    assert has_first_record(book), "all members go on with the same record"


def test_a_deposed_leader_is_rejected_once_its_successor_has_pushed(book: RecordStore) -> None:
    push(book, replace(RECORD, epoch=6))

    answer = push(book, replace(RECORD, epoch=5))

    assert answer == RecordRejected(HTTPStatus.CONFLICT, "epoch 5 is below 6")
    assert push(book, RECORD) == RecordAccepted(), "the store's agent hands on the first record"


@pytest.mark.parametrize(
    "member",
    [
        replace(MEMBERS[1], pod_uid="another"),
        replace(MEMBERS[1], address="10.0.0.9"),
        replace(MEMBERS[1], ranks=1),
        replace(MEMBERS[1], index=2),
    ],
    ids=["pod", "address", "ranks", "index"],
)
def test_other_members_under_the_same_number_are_a_conflict(
    book: RecordStore, member: Member
) -> None:
    answer = push(book, replace(RECORD, epoch=5, members=(MEMBERS[0], member)))

    assert answer == RecordRejected(HTTPStatus.CONFLICT, "generation 3 is not above 3")
    assert has_first_record(book)
    assert push(book, RECORD) == RecordAccepted(), "and the refused epoch was not kept"


def test_the_same_members_of_another_job_are_refused(book: RecordStore) -> None:
    answer = push(book, replace(RECORD, job_uid="other", epoch=5))
    assert isinstance(answer, RecordRejected)
    assert answer.status is HTTPStatus.FORBIDDEN


def test_a_higher_generation_is_a_new_membership(book: RecordStore) -> None:
    assert push(book, replace(RECORD, generation=4)) == RecordAccepted()
    assert book.generation == 4
