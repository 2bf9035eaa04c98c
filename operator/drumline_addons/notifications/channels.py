"""Parse the owner's configuration: channels, and the routes of messages. Pure.

Addresses come only from this configuration. A job chooses among channels that allow it, and mail
recipients in the domains that its channel names. The configuration never contains secrets. It names
keys of Secrets, which are mounted as files and read for each message.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from drumline_addons.notifications.events import PATIENCE, NewsKind, OutlookChange, Patience
from drumline_addons.notifications.jobs import NotifiableJob

# A ConfigMap holds 1 MiB. A quarter of it is enough for all channels and routes.
MOST_CONFIG_BYTES: Final = 256 * 1024
MOST_CHOICES: Final = 8
_MOST_CHANNELS: Final = 100
# No quoted local parts: they are valid, but they are used for injections.
_ADDRESS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._%+-]{0,63}@[A-Za-z0-9][A-Za-z0-9.-]{0,252}")

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
KubeName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
Address = Annotated[str, Field(pattern=f"^{_ADDRESS.pattern}$")]
Domain = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]


class ConfigurationError(ValueError):
    """A configuration that cannot be used; the message names the field and what is valid."""


class _ChannelSettings(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )


class SecretKey(_ChannelSettings):
    """Key of a Secret in the release's namespace."""

    secret: KubeName
    key: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][-A-Za-z0-9._]{0,252}$")]


def _checked_url(url: str) -> None:
    parts = urlsplit(url)
    # A user in the URL would be a secret in a ConfigMap.
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username is not None:
        raise ValueError("url must be https://HOST/PATH (or http://), without a user in it")


class SlackChannel(_ChannelSettings):
    """Incoming webhook of Slack, or of a program that accepts its messages."""

    url_from: SecretKey
    """Secret with its URL."""
    ca_from: SecretKey | None = None
    """PEM certificate authorities that sign its certificate. Default: the public ones."""


class WebhookChannel(_ChannelSettings):
    """Program that accepts CloudEvents by HTTP."""

    url: Annotated[str, Field(max_length=2048)] = ""
    url_from: SecretKey | None = None
    """Secret with the URL, instead of `url`."""
    token_from: SecretKey | None = None
    """Secret with a token, sent as `Authorization: Bearer`."""
    ca_from: SecretKey | None = None
    """PEM certificate authorities that sign its certificate. Default: the public ones."""

    @model_validator(mode="after")
    def _has_one_url(self) -> Self:
        # `==` of two booleans: either both or neither is given.
        if bool(self.url) == (self.url_from is not None):
            raise ValueError("give exactly one of url and urlFrom")
        if self.url:
            _checked_url(self.url)
        return self


class MailChannel(_ChannelSettings):
    """Mail server that accepts messages for its recipients."""

    host: Annotated[str, Field(min_length=1, max_length=253)]
    port: Annotated[int, Field(ge=1, le=65_535)] = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    """`none` sends unencrypted, without a password."""
    sender: Address
    recipients: Annotated[list[Address], Field(max_length=50)] = []
    allowed_domains: Annotated[list[Domain], Field(max_length=50)] = []
    """Domains in which a job may choose recipients, as CHANNEL:ADDRESS."""
    username_from: SecretKey | None = None
    password_from: SecretKey | None = None
    ca_from: SecretKey | None = None
    """PEM certificate authorities that sign its certificate. Default: the public ones."""

    @model_validator(mode="after")
    def _password_is_safe(self) -> Self:
        if (self.username_from is None) != (self.password_from is None):
            raise ValueError("give both usernameFrom and passwordFrom, or neither")
        # STARTTLS is the default, so sending without encryption needs an explicit choice.
        if self.security == "none" and self.password_from is not None:
            raise ValueError("security: none would send the password unencrypted; use starttls")
        return self


class Channel(_ChannelSettings):
    """Destination of messages, of exactly one kind."""

    slack: SlackChannel | None = None
    webhook: WebhookChannel | None = None
    mail: MailChannel | None = None
    jobs_may_choose: bool = False
    """Whether the annotation `drumline.dev/notify` of a job may name the channel."""

    @property
    def kind(self) -> Literal["slack", "webhook", "mail"]:
        """Return the kind of the channel."""
        if self.slack is not None:
            return "slack"
        return "webhook" if self.webhook is not None else "mail"

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        # A union by presence, because the chart's values have no discriminator.
        if sum(kind is not None for kind in (self.slack, self.webhook, self.mail)) != 1:
            raise ValueError("give exactly one of slack, webhook and mail")
        return self


class NewsRoute(_ChannelSettings):
    """Route of messages to channels. An empty list stands for all."""

    channels: Annotated[list[Name], Field(min_length=1, max_length=_MOST_CHANNELS)]
    queues: Annotated[list[KubeName], Field(max_length=1000)] = []
    namespaces: Annotated[list[KubeName], Field(max_length=1000)] = []
    kinds: list[NewsKind] = []

    def takes(self, change: OutlookChange) -> bool:
        """Return whether this route applies to the change."""
        # All three must apply. An empty list is not a filter.
        return (
            (not self.queues or change.queue in self.queues)
            and (not self.namespaces or change.namespace in self.namespaces)
            and (not self.kinds or change.kind in self.kinds)
        )


class StuckAfter(_ChannelSettings):
    """Waiting times after which a message is sent, in seconds."""

    forecast_seconds: Annotated[float, Field(ge=60)] = PATIENCE.after_forecast_seconds
    """Time after the first forecast, or half of the forecast wait if that is longer."""
    queued_seconds: Annotated[float, Field(ge=60)] = PATIENCE.without_forecast_seconds
    """Time in the queue without a forecast."""
    starting_seconds: Annotated[float, Field(ge=60)] = PATIENCE.starting_seconds
    """Time of starting or recovering."""

    @property
    def patience(self) -> Patience:
        """Return the times for `events.advanced`."""
        return Patience(
            after_forecast_seconds=self.forecast_seconds,
            without_forecast_seconds=self.queued_seconds,
            starting_seconds=self.starting_seconds,
        )


class Destination(BaseModel):
    """Destination of one message: a channel, and a recipient if the job chose one."""

    model_config = ConfigDict(frozen=True)
    channel: str
    recipient: str = ""


class NotificationSettings(_ChannelSettings):
    """`notifications.config` of the chart."""

    channels: Annotated[dict[Name, Channel], Field(max_length=_MOST_CHANNELS)] = {}
    routes: Annotated[list[NewsRoute], Field(max_length=1000)] = []
    source: Annotated[str, Field(pattern=r"^[A-Za-z0-9./:_-]{1,200}$")] = "/drumline"
    """Source attribute of CloudEvents: names this cluster."""
    cluster: Annotated[str, Field(pattern=r"^[A-Za-z0-9 ._-]{0,63}$")] = ""
    """Name of the cluster in messages to people."""
    stuck_after: StuckAfter = StuckAfter()

    @model_validator(mode="after")
    def _channels_exist(self) -> Self:
        # Checked here once, so that sending needs no case for a missing channel.
        for number, route in enumerate(self.routes):
            for name in route.channels:
                if name not in self.channels:
                    known = ", ".join(sorted(self.channels)) or "none"
                    raise ValueError(
                        f"routes[{number}].channels: channel {name!r} does not exist; known:"
                        f" {known}"
                    )
        return self


def parsed(raw: bytes) -> NotificationSettings:
    """Return the configuration from a JSON file.

    Raises:
        ConfigurationError: the file is invalid. The message names the place and the reason.
    """
    # Before parsing: the parser's time grows with the size.
    if len(raw) > MOST_CONFIG_BYTES:
        raise ConfigurationError(f"{len(raw)} bytes exceed the maximum of {MOST_CONFIG_BYTES}")
    try:
        return NotificationSettings.model_validate_json(raw)
    except ValidationError as error:
        # The input is left out of the error, because it may contain an address.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise ConfigurationError(f"{where}: {first['msg']}" if where else first["msg"]) from None


def destinations(
    settings: NotificationSettings, change: OutlookChange, *, choice: str
) -> tuple[Destination, ...]:
    """Return the destinations of a change by routes and by the job's choice, without duplicates.

    Args:
        settings: the owner's configuration.
        change: the change.
        choice: annotation of the job: `slack-nlp, mail:ada@example.com`.
    """
    routed = [
        Destination(channel=name)
        for route in settings.routes
        if route.takes(change)
        for name in route.channels
    ]
    # A dict keeps the order, so routes come before choices.
    return tuple(dict.fromkeys((*routed, *chosen(settings, choice))))


def chosen(settings: NotificationSettings, choice: str) -> Iterator[Destination]:
    """Return the allowed part of a job's choice."""
    entries = [entry.strip() for entry in choice.split(",") if entry.strip()]
    # The bound comes before any lookup: a tenant may write a thousand entries.
    for entry in entries[:MOST_CHOICES]:
        name, has_recipient, recipient = entry.partition(":")
        channel = settings.channels.get(name)
        # Unknown and forbidden channels look the same, so a tenant cannot probe for names.
        if channel is None or not channel.jobs_may_choose:
            continue
        if not has_recipient:
            yield Destination(channel=name)
        elif channel.mail is not None and _is_allowed(channel.mail, recipient):
            yield Destination(channel=name, recipient=recipient)


def refused_choices(settings: NotificationSettings, job: NotifiableJob) -> int:
    """Return the number of entries in a job's choice that the settings do not allow."""
    entries = [entry for entry in job.choice.split(",") if entry.strip()]
    return len(entries) - sum(1 for _ in chosen(settings, job.choice))


def _is_allowed(mail: MailChannel, recipient: str) -> bool:
    if not _ADDRESS.fullmatch(recipient):
        return False
    # Domains are compared in lower case. The local part may be case-sensitive.
    return recipient.rpartition("@")[2].lower() in mail.allowed_domains
