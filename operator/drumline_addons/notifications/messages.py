"""Format a change as a line of text, a Slack message, a mail and a CloudEvent. Pure.

Texts of jobs are plain and bounded since `jobs`. In Slack they are `plain_text`, which contains no
links, mentions or formats. The short text beside it is escaped. A mail's headers refuse line
breaks, and its body is plain text.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any, Final

from drumline.overview.objects import seconds
from drumline_addons.notifications.events import NewsKind, Outlook, OutlookChange, rfc3339

CLOUD_EVENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"
_MOST_SUBJECT_CHARACTERS: Final = 180
_MOST_BLOCK_CHARACTERS: Final = 3000
"""Maximum number of characters in a Slack text."""


def headline(change: OutlookChange) -> str:
    """Return the change in a few words: `research/llama has failed: RestartsExhausted`."""
    return f"{_subject(change)} {_verb(change)}"


def _subject(change: OutlookChange) -> str:
    if change.namespace:
        return f"{change.namespace}/{change.name}"
    whose = f"user {change.user} of " if change.user else ""
    return f"{whose}queue {change.name}"


def _verb(change: OutlookChange) -> str:
    match change.kind:
        case NewsKind.STARTED:
            # `again` only after a message that the job had stopped.
            again = change.before in {Outlook.PREEMPTED, Outlook.STUCK}
            return "runs again" if again else "has started"
        case NewsKind.PREEMPTED:
            return "was preempted"
        case NewsKind.STUCK:
            return "is stuck"
        case NewsKind.FAILED:
            return f"has failed: {change.reason}" if change.reason else "has failed"
        case NewsKind.FINISHED:
            return "has finished"
        case NewsKind.BUDGET:
            return f"has used most of {'their' if change.user else 'its'} budget"
        case NewsKind.IDLE:
            return (
                "was suspended, because its GPUs were idle"
                if change.reason == "IdleGpus"
                else "is idle"
            )


def details(change: OutlookChange) -> tuple[str, ...]:
    """Return further details of the change, one per line."""
    # Most important first, because chats cut long messages at the end.
    lines = [
        _return_line(change) if change.kind is NewsKind.PREEMPTED else "",
        _stuck_line(change) if change.kind is NewsKind.STUCK else "",
        change.message,
        _culprit_line(change),
        _step_line(change),
        f"Restarts: {change.restarts}" if change.restarts else "",
        f"Queue: {change.queue}" if change.queue else "",
        f"User: {change.user}" if change.user else "",
        f"At: {rfc3339(change.at)}",
        f"More: drumline report {change.name} -n {change.namespace}"
        if change.namespace
        else f"More: drumline queue {change.name}",
    ]
    return tuple(line for line in lines if line)


def _return_line(change: OutlookChange) -> str:
    returns_at, returns_by = seconds(change.returns_at), seconds(change.returns_by)
    if returns_at is None:
        return "There is no forecast of its next start."
    late = (
        f", with a probability of 90 % by {rfc3339(returns_by)}" if returns_by is not None else ""
    )
    return f"It is expected to start again at {rfc3339(returns_at)}{late}."


def _stuck_line(change: OutlookChange) -> str:
    since = f" since {rfc3339(change.since)}" if change.since is not None else ""
    return f"It has made no progress{since}: {change.reason or 'no reason is known'}"


def _culprit_line(change: OutlookChange) -> str:
    culprit = change.culprit
    if culprit is None:
        return ""
    rank = f"rank {culprit.rank}" if culprit.rank is not None else ""
    pod = f"pod {culprit.pod}" if culprit.pod else ""
    node = f"node {culprit.node}" if culprit.node else ""
    where = ", ".join(part for part in (rank, pod, node) if part)
    return f"Culprit: {where}: {culprit.cause}" if where else f"Cause: {culprit.cause}"


def _step_line(change: OutlookChange) -> str:
    if change.step is None:
        return ""
    return f"Step: {change.step}" + (f" of {change.total_steps}" if change.total_steps else "")


def cloud_event(change: OutlookChange, *, source: str) -> bytes:
    """Return the change as a CloudEvent 1.0 in structured mode."""
    culprit = change.culprit
    # Empty fields are left out below, so consumers see a field only with a value.
    data: dict[str, Any] = {
        "kind": change.kind,
        "before": change.before,
        "namespace": change.namespace,
        "name": change.name,
        "uid": change.uid,
        "queue": change.queue,
        "user": change.user,
        "reason": change.reason,
        "message": change.message,
        "summary": headline(change),
        "step": change.step,
        "totalSteps": change.total_steps,
        "restarts": change.restarts,
        "since": rfc3339(change.since) if change.since is not None else None,
        "expectedReturn": change.returns_at or None,
        "expectedReturnBy": change.returns_by or None,
        "culprit": culprit
        and {
            "cause": culprit.cause,
            "pod": culprit.pod or None,
            "node": culprit.node or None,
            "rank": culprit.rank,
        },
    }
    event = {
        "specversion": "1.0",
        "id": change.id,
        "source": source,
        # The type follows the reverse-DNS convention of CloudEvents.
        "type": f"dev.drumline.{_resource(change)}.{change.kind.lower()}",
        "subject": f"{change.namespace or 'queue'}/{change.name}",
        "time": rfc3339(change.at),
        "datacontenttype": "application/json",
        "data": {name: value for name, value in data.items() if value is not None and value != ""},
    }
    return json.dumps(event).encode()


def _resource(change: OutlookChange) -> str:
    return "trainingjob" if change.namespace else "trainingqueue"


def slack_message(change: OutlookChange, *, cluster: str) -> bytes:
    """Return the change as the body for an incoming webhook of Slack."""
    title = _titled(change, cluster=cluster)
    lines = "\n".join(details(change))[:_MOST_BLOCK_CHARACTERS]
    header = {"type": "section", "text": _plain_text(title)}
    # `plain_text` blocks interpret no markup, so tenants' texts cannot mention anybody.
    body = {"type": "section", "text": _plain_text(lines)}
    return json.dumps({"text": _escaped(title), "blocks": [header, body]}).encode()


def _plain_text(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}


def _escaped(text: str) -> str:
    """Escape text for Slack. Otherwise `<!channel>` would notify everyone."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mail_message(
    change: OutlookChange, *, sender: str, recipients: list[str], cluster: str
) -> EmailMessage:
    """Return the change as a mail. The same change has the same Message-ID.

    Args:
        change: the change to report.
        sender: address of the sender.
        recipients: addresses of the receivers.
        cluster: name of the cluster.
    """
    mail = EmailMessage(policy=SMTP)
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    # Subjects are cut. The first line of the body has the whole headline.
    mail["Subject"] = _titled(change, cluster=cluster)[:_MOST_SUBJECT_CHARACTERS]
    mail["Date"] = format_datetime(datetime.fromtimestamp(change.at, UTC))
    # The id repeats with a resent message, so mail programs can drop the copy.
    mail["Message-ID"] = f"<{change.id}@drumline>"
    mail["Auto-Submitted"] = "auto-generated"  # RFC 3834: out-of-office replies stay away
    mail.set_content("\n".join((headline(change), "", *details(change), "")))
    return mail


def _titled(change: OutlookChange, *, cluster: str) -> str:
    return f"[{cluster}] {headline(change)}" if cluster else headline(change)
