"""Send messages by HTTP: CloudEvents to a program, and Slack's incoming webhooks.

Redirects are not followed, so a message and its token go only to the configured address. Only the
status of a response is read.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Final

import aiohttp

from drumline_addons.notifications.channels import SecretKey, SlackChannel, WebhookChannel
from drumline_addons.notifications.delivery import ATTEMPT_SECONDS, DeliveryError
from drumline_addons.notifications.messages import CLOUD_EVENT_TYPE, cloud_event, slack_message
from drumline_addons.notifications.record import PendingMessage
from drumline_addons.notifications.secret_files import SecretFiles

_TIMEOUT: Final = aiohttp.ClientTimeout(total=ATTEMPT_SECONDS)
# Timeout, too early and too many requests. Other 4xx answers repeat themselves.
_WORTH_ANOTHER_TRY: Final = frozenset((408, 425, 429))
_MOST_AFTER_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudEventSender:
    """Sender of CloudEvents 1.0 in structured mode.

    Attributes:
        session: HTTP session.
        channel: destination.
        secrets: URL and token, if they are secret.
        source: name of this cluster.
    """

    session: aiohttp.ClientSession
    channel: WebhookChannel
    secrets: SecretFiles
    source: str

    async def send(self, message: PendingMessage) -> None:
        """Send a change as a CloudEvent.

        Raises:
            DeliveryError: the message was not accepted.
        """
        channel, secrets = self.channel, self.secrets
        headers = {"Content-Type": CLOUD_EVENT_TYPE}
        if channel.token_from is not None:
            # Read for each message, so a rotated token needs no restart.
            headers["Authorization"] = f"Bearer {secrets.read(channel.token_from)}"
        await _post(
            self.session,
            channel.url if channel.url_from is None else secrets.read(channel.url_from),
            body=cloud_event(message.change, source=self.source),
            headers=headers,
            trust=trusted(secrets, channel.ca_from),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlackSender:
    """Sender to an incoming webhook of Slack.

    Attributes:
        session: HTTP session.
        channel: destination.
        secrets: URL of the webhook.
        cluster: name of the cluster for people.
    """

    session: aiohttp.ClientSession
    channel: SlackChannel
    secrets: SecretFiles
    cluster: str

    async def send(self, message: PendingMessage) -> None:
        """Send a change as text and two blocks.

        Raises:
            DeliveryError: the message was not accepted.
        """
        await _post(
            self.session,
            self.secrets.read(self.channel.url_from),
            body=slack_message(message.change, cluster=self.cluster),
            headers={"Content-Type": "application/json; charset=utf-8"},
            trust=trusted(self.secrets, self.channel.ca_from),
        )


def trusted(secrets: SecretFiles, authorities: SecretKey | None) -> ssl.SSLContext:
    """Return the certificate authorities that a channel trusts: its own, or the public ones.

    Raises:
        DeliveryError: the channel's authorities cannot be read.
    """
    if authorities is None:
        return ssl.create_default_context()
    # Comments between the certificates may have other characters, which ssl does not take.
    pem = secrets.read(authorities).encode("ascii", "replace").decode()
    try:
        return ssl.create_default_context(cadata=pem)
    except ssl.SSLError:
        raise DeliveryError(f"Secret {authorities.secret!r} contains no PEM certificates") from None


async def _post(
    session: aiohttp.ClientSession,
    url: str,
    *,
    body: bytes,
    headers: dict[str, str],
    trust: ssl.SSLContext,
) -> None:
    try:
        async with session.post(
            url, data=body, headers=headers, ssl=trust, timeout=_TIMEOUT, allow_redirects=False
        ) as answer:
            # Only status and headers: a body of the other side must not reach the log.
            status, after = answer.status, _after_seconds(answer.headers.get("Retry-After", ""))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        # its text may have the URL, which may be a secret
        raise DeliveryError(f"no answer: {type(error).__name__}") from None
    if 200 <= status < 300:
        return
    is_final = status < 500 and status not in _WORTH_ANOTHER_TRY
    raise DeliveryError(f"HTTP status {status}", is_final=is_final, after_seconds=after)


def _after_seconds(text: str) -> float:
    """Return the seconds of a Retry-After header. A date counts as none."""
    # The pause is bounded, so a channel cannot silence itself for days.
    return min(float(text), _MOST_AFTER_SECONDS) if text.isascii() and text.isdigit() else 0.0
