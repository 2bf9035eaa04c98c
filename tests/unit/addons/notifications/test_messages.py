"""What messages say, and that the texts of jobs stay texts."""

from __future__ import annotations

import json
from email.policy import SMTP
from typing import Any

import pytest

from drumline_addons.notifications.events import NewsKind, Outlook, OutlookChange
from drumline_addons.notifications.jobs import Culprit
from drumline_addons.notifications.messages import (
    cloud_event,
    details,
    headline,
    mail_message,
    slack_message,
)
from tests.texts import Golden, missing
from tests.unit.addons.notifications.jobs import a_change, at, failed, time

EVIL = "<!channel> *b* <http://x|y> & \r\nBcc: all@example.com\x1b[31m\u202e"
FAILED = a_change(
    reason="RestartsExhausted",
    message="5 of 5 restarts within 3600 s",
    culprit=Culprit(cause="killed by signal 9", pod="llama-1-g4", node="gpu-7", rank=3),
    step=40,
    total_steps=100,
    restarts=5,
)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (a_change(NewsKind.STARTED, before=Outlook.WAITING), "has started"),
        (a_change(NewsKind.STARTED, before=Outlook.PREEMPTED), "runs again"),
        (a_change(NewsKind.STARTED, before=Outlook.STUCK), "runs again"),
        (a_change(NewsKind.PREEMPTED), "was preempted"),
        (a_change(NewsKind.STUCK), "is stuck"),
        (a_change(NewsKind.FAILED), "has failed"),
        (FAILED, "has failed: RestartsExhausted"),
        (a_change(NewsKind.FINISHED), "has finished"),
    ],
)
def test_headlines(change: OutlookChange, words: str) -> None:
    assert headline(change) == f"research/llama {words}"


def test_a_failure_says_who_and_why(golden: Golden) -> None:
    golden("failed.txt", "\n".join(details(FAILED)))


def test_a_preemption_says_when_the_job_returns() -> None:
    change = a_change(NewsKind.PREEMPTED, returns_at=time("12:00:00"), returns_by=time("14:00:00"))
    assert not missing(details(change)[0], "2026-11-23T12:00:00Z", "2026-11-23T14:00:00Z")
    assert "no forecast" in details(a_change(NewsKind.PREEMPTED))[0]


def test_a_stuck_job_says_since_when_and_why() -> None:
    change = a_change(NewsKind.STUCK, since=at("08:00:00"), reason="InsufficientQuota")
    assert not missing(details(change)[0], "2026-11-23T08:00:00Z", "InsufficientQuota")


def test_a_cloud_event_has_what_the_specification_asks_for() -> None:
    event: dict[str, Any] = json.loads(cloud_event(FAILED, source="/east"))
    data = event.pop("data")
    assert event == {
        "specversion": "1.0",
        "id": "c-1",
        "source": "/east",
        "type": "dev.drumline.trainingjob.failed",
        "subject": "research/llama",
        "time": "2026-11-23T11:00:00Z",
        "datacontenttype": "application/json",
    }
    assert data["culprit"] == {
        "cause": "killed by signal 9",
        "pod": "llama-1-g4",
        "node": "gpu-7",
        "rank": 3,
    }
    assert (data["reason"], data["step"], data["totalSteps"]) == ("RestartsExhausted", 40, 100)
    assert "expectedReturn" not in data


def test_nothing_of_a_job_is_a_mention_or_a_link_in_slack() -> None:
    change = a_change(reason=EVIL, message=EVIL)
    message: dict[str, Any] = json.loads(slack_message(change, cluster="east"))
    assert "<" not in message["text"]
    assert "&lt;!channel&gt;" in message["text"]
    assert {block["text"]["type"] for block in message["blocks"]} == {"plain_text"}
    assert all(len(block["text"]["text"]) <= 3000 for block in message["blocks"])


def test_no_text_of_a_job_is_a_header_of_a_mail() -> None:
    """What comes from the API server is one line; that there is no other way in, too."""
    evil = failed(reason=EVIL, message=EVIL, lastIncident={"cause": EVIL})
    assert "\n" not in f"{evil.reason}{evil.message}{evil.culprit}"
    change = a_change(reason=evil.reason, message=evil.message, culprit=evil.culprit)
    mail = mail_message(
        change, sender="drumline@example.com", recipients=["a@example.com"], cluster="east"
    )
    head = mail.as_bytes(policy=SMTP).partition(b"\r\n\r\n")[0]
    assert b"\r\nBcc:" not in head
    assert mail["To"] == "a@example.com"
    assert mail["Message-ID"] == "<c-1@drumline>"
    assert mail["Auto-Submitted"] == "auto-generated"
    with pytest.raises(ValueError, match="line"):
        mail_message(
            a_change(reason="x\r\nBcc: all@example.com"),
            sender="drumline@example.com",
            recipients=["a@example.com"],
            cluster="",
        )


def test_texts_of_jobs_are_bounded() -> None:
    long = failed(message="m" * 2048, lastIncident={"cause": "c" * 1024})
    assert len(long.message) == 300
    assert long.culprit is not None
    assert len(long.culprit.cause) == 300
    assert failed(notify="x" * 2000).choice == ""
