"""Alerts about the notifier and the archiver: what they should have said or kept and did not."""

from __future__ import annotations

from typing import Final

from drumline.monitoring.model import Alert, AlertGroup

_NOTIFIER_LOG: Final = "kubectl logs -n drumline-system deploy/drumline-notifier --tail=50"

REPORTING: Final = AlertGroup(
    name="drumline-reporting",
    alerts=(
        Alert(
            name="DrumlineNotificationsLate",
            expression="max by (channel, kind) (drumline_notifier_oldest_message_seconds) > 900",
            minutes=5,
            severity="warning",
            summary="Channel {{ $labels.channel }} ({{ $labels.kind }}) has a message that waits"
            " for {{ $value | humanizeDuration }}.",
            command=_NOTIFIER_LOG,
        ),
        Alert(
            name="DrumlineNotificationsDropped",
            expression="sum by (channel, kind)"
            " (increase(drumline_notifier_messages_dropped_total[1h])) > 0",
            minutes=0,
            severity="warning",
            summary="{{ $value | humanize }} messages for channel {{ $labels.channel }}"
            " ({{ $labels.kind }}) were given up within an hour.",
            command=_NOTIFIER_LOG,
        ),
        Alert(
            name="DrumlineArchiveLate",
            expression="max(drumline_archiver_overdue_seconds) > 900",
            minutes=5,
            severity="warning",
            summary="The archive lacks changes of jobs that should be in it for"
            " {{ $value | humanizeDuration }}.",
            command="kubectl logs -n drumline-system deploy/drumline-archiver --tail=50",
        ),
    ),
)
