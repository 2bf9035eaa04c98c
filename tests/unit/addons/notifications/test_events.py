"""Which changes of a job are news, and that each is news once."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline_addons.notifications.events import (
    KnownOutlook,
    NewsKind,
    Outlook,
    OutlookChange,
    Patience,
    advanced,
)
from drumline_addons.notifications.jobs import Culprit, NotifiableJob
from tests.texts import missing
from tests.unit.addons.notifications.jobs import (
    at,
    condition,
    failed,
    idle,
    job,
    preempted,
    recovering,
    running,
    succeeded,
    time,
)

FORECAST = {"expectedStart": time("10:30:00"), "expectedStartBy": time("11:00:00")}


def news(
    seen: Iterable[tuple[str, NotifiableJob]], *, known: KnownOutlook | None = None
) -> list[OutlookChange]:
    """The changes of a job that is seen like this, at these times."""
    changes: list[OutlookChange] = []
    for clock, view in seen:
        known, change = advanced(known, view, now=at(clock))
        changes += [change] if change is not None else []
    return changes


def kinds(*seen: tuple[str, NotifiableJob]) -> list[str]:
    return [str(change.kind) for change in news(seen)]


def test_a_job_that_starts_and_finishes_is_two_messages() -> None:
    assert kinds(
        ("08:01:00", job("Pending")),
        ("08:59:00", job("Starting", admittedAt=time("08:59:00"))),
        ("09:00:00", running()),
        ("09:30:00", running(step=100)),
        ("11:00:00", succeeded()),
        ("11:00:30", succeeded()),
    ) == ["Started", "Finished"]


def test_no_recovery_and_no_retry_is_news() -> None:
    retries = [
        (f"09:{minute:02}:30", view)
        for minute in range(1, 20)
        for view in (
            recovering(since=f"09:{minute:02}:00"),
            preempted(at=f"09:{minute:02}:10", reason="PodFailed"),
            job("Starting", admittedAt=time(f"09:{minute:02}:20")),
            running(since=f"09:{minute:02}:30"),
        )
    ]
    assert kinds(("09:00:00", running()), *retries, ("11:00:00", failed())) == ["Started", "Failed"]


def test_a_job_that_is_queued_again_after_a_failure_is_not_preempted() -> None:
    queued_again = preempted(reason="PodFailed", **FORECAST)
    assert kinds(("09:00:00", running()), ("10:10:00", queued_again)) == ["Started"]


def test_a_failed_job_names_its_culprit_and_its_reason() -> None:
    incident = {"cause": "rank 3 was killed", "pod": "llama-1-g4", "node": "gpu-7", "rank": 3}
    change = news([("11:00:00", failed(lastIncident=incident, message="5 of 5 restarts"))])[0]
    assert (change.reason, change.message) == ("RestartsExhausted", "5 of 5 restarts")
    assert change.culprit == Culprit(
        cause="rank 3 was killed", pod="llama-1-g4", node="gpu-7", rank=3
    )
    late = failed(lastIncident=incident, reason="ActiveDeadlineExceeded")
    assert news([("11:00:00", late)])[0].culprit is None


def test_a_preemption_waits_for_its_forecast() -> None:
    seen = [
        ("09:00:00", running()),
        ("10:00:05", preempted()),
        ("10:00:10", preempted(**FORECAST)),
        ("10:10:00", preempted(**FORECAST | {"expectedStart": time("10:45:00")})),
    ]
    started, change = news(seen)
    assert (started.kind, change.kind) == (NewsKind.STARTED, NewsKind.PREEMPTED)
    assert (change.returns_at, change.returns_by) == (time("10:30:00"), time("11:00:00"))
    assert change.at == at("10:00:00")
    assert not missing(change.message, "team/high", "step 40")


def test_a_preemption_without_a_forecast_is_said_after_three_minutes() -> None:
    before = [("09:00:00", running()), ("10:02:59", preempted())]
    assert [change.kind for change in news(before)] == ["Started"]
    later = news([*before, ("10:03:00", preempted())])[1]
    assert (later.kind, later.returns_at) == ("Preempted", "")


def test_a_job_that_moves_is_not_preempted() -> None:
    moving = preempted(nominated={"gpuPool": "h100"})
    assert kinds(
        ("09:00:00", running()), ("10:05:00", moving), ("10:06:00", running(since="10:06:00"))
    ) == ["Started"]


def test_a_preempted_job_that_waits_for_victims_of_its_own_does_not_move() -> None:
    lost = {"nominated": {"gpuPool": "h100"}, **FORECAST}
    waits = job(
        "Pending",
        reason="WaitingForVictims",
        conditions=[condition("Admitted", False, since="10:00:00", reason="Preempted")],
        **lost,
    )
    changes = news([("09:00:00", running()), ("10:00:30", waits)])
    assert [str(change.kind) for change in changes] == ["Started", "Preempted"]
    assert changes[1].returns_at == FORECAST["expectedStart"]


def test_a_job_that_stays_idle_is_said_once_and_again_an_hour_later_at_the_earliest() -> None:
    changes = news(
        [
            ("09:00:00", running()),
            ("09:51:00", idle("NoSteps", since="09:51:00")),
            ("09:55:00", idle(since="09:55:00")),
            ("09:58:00", idle(since="09:55:00")),
            ("10:10:00", recovering(since="10:10:00")),
            ("10:12:00", running(since="10:12:00")),
            ("10:30:00", idle(since="10:30:00")),
            ("10:54:59", idle(since="10:30:00")),
            ("10:55:00", idle(since="10:30:00")),  # as nothing changed: a look at all jobs
            ("10:55:15", idle(since="10:30:00")),
        ]
    )
    assert [str(change.kind) for change in changes] == ["Started", "Idle", "Idle"]
    assert (changes[1].at, changes[1].message) == (at("09:55:00"), "no work since 09:50")
    assert changes[2].at == at("10:30:00")
    assert len({change.id for change in changes}) == 3


def test_a_later_pause_is_said_also_where_nobody_saw_that_it_worked_between() -> None:
    changes = news(
        [
            ("08:00:00", running()),
            ("09:00:00", idle(since="09:00:00")),
            ("09:40:00", idle(since="09:40:00")),  # within the hour
            ("10:00:00", idle(since="09:40:00")),
            ("11:30:00", idle(since="09:40:00")),
        ]
    )
    assert [str(change.kind) for change in changes] == ["Started", "Idle", "Idle"]
    assert changes[2].at == at("09:40:00")


def test_clocks_that_differ_a_little_say_nothing_twice() -> None:
    changes = news(
        [
            ("08:00:00", running()),
            ("09:00:00", idle(since="09:00:10")),
            ("10:30:00", idle(since="09:00:10")),
        ]
    )
    assert [str(change.kind) for change in changes] == ["Started", "Idle"]


def test_a_job_that_is_idle_off_and_on_is_said_once_an_hour_and_known_without_a_write() -> None:
    """Whatever comes between, as its agents decide how often."""
    between = (running(), preempted(at="10:00:20", **FORECAST), job("Suspended"))
    known, said, written = None, 0, 0
    for second in range(0, 2 * 3600, 20):
        views = (idle(since="10:00:00"), between[0 if second % 600 else second // 600 % 3])
        for view in views:
            before = known
            known, change = advanced(known, view, now=at("10:00:00") + second)
            said += change is not None and change.kind is NewsKind.IDLE
            written += known != before and view is between[0]
    assert (said, written) == (2, 2)


def test_a_clock_that_was_ahead_holds_no_message_back() -> None:
    ahead = KnownOutlook(outlook=Outlook.RUNNING, at=at("09:00:00"), idle_said_at=int(9e9))
    (change,) = news([("10:00:00", idle(since="09:59:00"))], known=ahead)
    assert change.kind is NewsKind.IDLE


def test_a_suspension_for_idle_gpus_is_a_message_and_a_users_is_none() -> None:
    lost = condition("Admitted", False, since="10:00:00", reason="IdleGpus")
    for reason, expected in (("IdleGpus", ["Started", "Idle"]), ("SuspendedByUser", ["Started"])):
        suspended = job("Suspended", reason=reason, message="its GPUs were idle", conditions=[lost])
        changes = news([("09:00:00", running()), ("10:00:01", suspended), ("10:01:00", suspended)])
        assert [str(change.kind) for change in changes] == expected


def test_a_job_runs_again_after_its_preemption() -> None:
    changes = news(
        [
            ("09:00:00", running()),
            ("10:03:00", preempted()),
            ("10:40:00", running(since="10:40:00")),
            ("10:50:00", preempted(at="10:50:00", **FORECAST)),
        ]
    )
    assert [str(change.kind) for change in changes] == [
        "Started",
        "Preempted",
        "Started",
        "Preempted",
    ]
    assert changes[2].before is Outlook.PREEMPTED
    assert len({change.id for change in changes}) == 4


def test_waiting_far_longer_than_the_first_forecast_is_news_once() -> None:
    first = job("Pending", expectedStart=time("08:30:00"), expectedStartBy=time("09:00:00"))
    later = job("Pending", expectedStart=time("20:00:00"), expectedStartBy=time("21:00:00"))
    seen = [("08:01:00", first), ("09:29:59", later)]
    assert news(seen) == []
    (change,) = news([*seen, ("09:30:00", later), ("12:00:00", later)])
    assert (change.kind, change.since, change.at) == ("Stuck", at("08:00:00"), at("09:30:00"))


def test_half_of_a_long_forecast_is_waited_for_beyond_it() -> None:
    far = job("Pending", expectedStart=time("12:00:00"), expectedStartBy=time("16:00:00"))
    assert kinds(("08:00:00", far), ("19:59:59", far)) == []
    assert kinds(("08:00:00", far), ("20:00:00", far)) == ["Stuck"]


@pytest.mark.parametrize("reason", ["InvalidConfig", "PredecessorFailed", "MemoryExceeded"])
def test_a_job_that_nobody_but_its_owner_can_help_is_stuck_soon(reason: str) -> None:
    wrong = job("Pending", reason=reason)
    assert kinds(("08:04:59", wrong)) == []
    assert kinds(("08:05:00", wrong), ("09:00:00", wrong)) == ["Stuck"]


def test_a_job_that_waits_for_others_is_not_stuck() -> None:
    waiting = job("Pending", reason="WaitingForJobs")
    day = 86_400.0
    assert advanced(None, waiting, now=at("08:00:00") + 9 * day)[1] is None
    queued = job("Pending", reason="InsufficientQuota")
    assert advanced(None, queued, now=at("08:00:00") + day - 1)[1] is None
    assert advanced(None, queued, now=at("08:00:00") + day)[1] is not None


def test_starting_and_recovering_for_too_long_is_stuck_and_running_again_is_news() -> None:
    gone = recovering(since="10:00:00")
    assert kinds(
        ("09:00:00", running()),
        ("10:29:59", gone),
        ("10:30:00", gone),
        ("10:40:00", gone),
        ("10:50:00", running(since="10:50:00")),
    ) == ["Started", "Stuck", "Started"]
    starting = job("Starting", admittedAt=time("09:00:00"))
    assert kinds(("09:29:59", starting)) == []
    assert kinds(("09:30:00", starting)) == ["Stuck"]


def test_what_its_user_suspends_is_no_news_and_begins_anew() -> None:
    assert kinds(
        ("09:00:00", running()),
        ("09:10:00", job("Suspended")),
        ("09:20:00", job("Pending", queuedAt=time("09:20:00"))),
        ("09:30:00", running(since="09:30:00")),
    ) == ["Started", "Started"]


def test_the_id_follows_from_the_job_and_the_change() -> None:
    first, again = (news([("11:00:00", succeeded())])[0] for _ in range(2))
    other = news([("11:00:00", succeeded(uid="u-2"))])[0]
    assert first.id == again.id != other.id


VIEWS = st.sampled_from(
    [
        job("Pending"),
        job("Pending", reason="InvalidConfig"),
        job("Pending", **FORECAST),
        job("Starting", admittedAt=time("08:59:00")),
        running(),
        running(since="09:40:00"),
        recovering(since="09:20:00"),
        preempted(at="09:30:00"),
        preempted(at="09:50:00", **FORECAST),
        preempted(at="09:50:00", reason="PodFailed"),
        job("Suspended"),
        succeeded(),
        failed(),
    ]
)
MINUTES = st.integers(min_value=0, max_value=2000)


@settings(deadline=None)
@given(st.lists(st.tuples(MINUTES, VIEWS), max_size=30))
def test_an_object_that_is_seen_again_says_nothing_new(
    seen: list[tuple[int, NotifiableJob]],
) -> None:
    """At one moment, however it got there; but whose return is late already is stuck, too."""
    known: KnownOutlook | None = None
    for minute, view in seen:
        now = at("08:00:00") + 60.0 * minute
        before = known
        known, change = advanced(known, view, now=now)
        again, repeated = advanced(known, view, now=now)
        if known.outlook is Outlook.PREEMPTED and repeated is not None:
            assert repeated.kind is NewsKind.STUCK
        else:
            assert (again, repeated) == (known, None)
        if change is not None:
            assert change.before is not known.outlook
            assert before is None or before.outlook in {change.before, Outlook.SUSPENDED}


@settings(deadline=None)
@given(st.lists(VIEWS, max_size=30))
def test_there_are_never_two_messages_of_a_kind_with_nothing_between(
    seen: list[NotifiableJob],
) -> None:
    patience = Patience(forecast_seconds=0.0)
    known: KnownOutlook | None = None
    last: tuple[NewsKind, bool] | None = None
    for view in seen:
        before = known
        known, change = advanced(known, view, now=at("12:00:00"), patience=patience)
        was_suspended = before is not None and before.outlook is Outlook.SUSPENDED
        if change is not None:
            assert last is None or last[0] is not change.kind or was_suspended
            last = (change.kind, was_suspended)
        elif known.outlook is Outlook.SUSPENDED:
            last = None
