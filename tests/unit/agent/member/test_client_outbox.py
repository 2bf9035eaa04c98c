"""What waits for the leader: in order, of reports only the newest, never without bound."""

from __future__ import annotations

from drumline_agent.member.client_outbox import MAX_WAITING, ClientOutbox
from drumline_agent.protocol.client_messages import (
    MAX_SAID,
    ClientMessages,
    ConnectionClosed,
    RankSaid,
)
from drumline_client.wire import PartSaved, StepReport

NOW = (1, 0)


def report(step: int) -> StepReport:
    return StepReport(at=0.0, phase="training", saves=True, step=step)


def said(batch: ClientMessages | None) -> list[RankSaid]:
    assert batch is not None
    return batch.decoded()


def test_of_reports_in_a_row_the_newest_is_sent() -> None:
    outbox = ClientOutbox()
    outbox.put(NOW, 0, report(1))
    outbox.put(NOW, 1, report(1))
    outbox.put(NOW, 0, report(2))
    outbox.put(NOW, 0, PartSaved(step=2, path="/p"))
    outbox.put(NOW, 0, report(3))
    outbox.put(NOW, 0, report(4))
    outbox.put(NOW, 1, ConnectionClosed())
    assert said(outbox.batch(index=1)) == [
        RankSaid(0, report(2)),
        RankSaid(1, report(1)),
        RankSaid(0, PartSaved(step=2, path="/p")),
        RankSaid(0, report(4)),
        RankSaid(1, ConnectionClosed()),
    ]
    assert outbox.batch(index=1) is None


def test_a_report_after_the_last_was_taken_is_a_new_entry() -> None:
    outbox = ClientOutbox()
    outbox.put(NOW, 0, report(1))
    outbox.batch(index=1)
    outbox.put(NOW, 0, report(2))
    assert said(outbox.batch(index=1)) == [RankSaid(0, report(2))]


def test_messages_of_an_older_attempt_are_dropped() -> None:
    outbox = ClientOutbox()
    outbox.put(NOW, 0, report(1))
    outbox.put((1, 1), 0, report(2))
    batch = outbox.batch(index=1)
    assert said(batch) == [RankSaid(0, report(2))]
    assert batch is not None
    assert batch.membership == (1, 1)


def test_it_is_bounded_and_sent_in_parts() -> None:
    outbox = ClientOutbox()
    for step in range(MAX_WAITING + 5):
        outbox.put(NOW, 0, PartSaved(step=step))
    first = said(outbox.batch(index=1))
    assert len(first) == MAX_SAID
    assert first[0] == RankSaid(0, PartSaved(step=5))
    outbox.put(NOW, 0, report(9))
    outbox.put(NOW, 0, report(10))
    rest: list[RankSaid] = []
    while (batch := outbox.batch(index=1)) is not None:
        rest += batch.decoded()
    assert rest[-1] == RankSaid(0, report(10))
    assert len(first) + len(rest) == MAX_WAITING + 1
