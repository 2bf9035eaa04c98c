"""Messages to a real web server and a real mail server on loopback."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from drumline_addons.notifications.channels import MailChannel, SlackChannel, WebhookChannel
from drumline_addons.notifications.delivery import DeliveryError
from drumline_addons.notifications.mail import MailSender
from drumline_addons.notifications.record import PendingMessage
from drumline_addons.notifications.secret_files import SecretFiles
from drumline_addons.notifications.webhook import CloudEventSender, SlackSender
from tests.channel_servers import (
    WebServer,
    mail_server,
    server_tls,
    web_server,
    write_secret,
)
from tests.texts import missing
from tests.unit.addons.notifications.jobs import a_change
from tools.cluster.certificates import new_authority

MESSAGE = PendingMessage(change=a_change(reason="Hang"), channel="any")
WORDS, MORE_WORDS = "correct horse", "tökéletes ló"
LOGIN = (("username", "user"), ("password", "password"))


@pytest.fixture
def secrets(tmp_path: Path) -> SecretFiles:
    return SecretFiles(folder=tmp_path)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


def events_to(
    server: WebServer, session: aiohttp.ClientSession, secrets: SecretFiles
) -> CloudEventSender:
    channel = WebhookChannel(url=f"{server.url}/events")
    return CloudEventSender(session=session, channel=channel, secrets=secrets, source="/east")


async def test_a_cloud_event_in_structured_mode_with_its_token_by_tls(
    session: aiohttp.ClientSession, secrets: SecretFiles
) -> None:
    authority = new_authority()
    write_secret(secrets.folder, "any", bearer="s3cret\n", ca=authority.pem.decode())
    with web_server(tls=server_tls(authority, secrets.folder)) as server:
        url = f"{server.url}/events"
        channel = WebhookChannel.model_validate(
            {
                "url": url,
                "tokenFrom": {"secret": "any", "key": "bearer"},
                "caFrom": {"secret": "any", "key": "ca"},
            }
        )
        await CloudEventSender(
            session=session, channel=channel, secrets=secrets, source="/east"
        ).send(MESSAGE)
        posted = server.next()
        distrusting = CloudEventSender(
            session=session, channel=WebhookChannel(url=url), secrets=secrets, source="/east"
        )
        with pytest.raises(DeliveryError, match="no answer: ClientConnectorCertificateError"):
            await distrusting.send(MESSAGE)
    assert posted.path == "/events"
    assert posted.headers["Authorization"] == "Bearer s3cret"
    assert posted.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert (posted.body["specversion"], posted.body["id"], posted.body["source"]) == (
        "1.0",
        "c-1",
        "/east",
    )


async def test_slack_at_an_address_that_is_a_secret(
    session: aiohttp.ClientSession, secrets: SecretFiles
) -> None:
    with web_server() as server:
        write_secret(secrets.folder, "any", url=f"{server.url}/services/T0/B0/x")
        channel = SlackChannel.model_validate({"urlFrom": {"secret": "any", "key": "url"}})
        sender = SlackSender(session=session, channel=channel, secrets=secrets, cluster="east")
        await sender.send(MESSAGE)
        posted = server.next()
    assert posted.path == "/services/T0/B0/x"
    assert not missing(posted.body["text"], "research/llama", "Hang")


@pytest.mark.parametrize(
    ("status", "is_final"), [(400, True), (404, True), (429, False), (500, False), (503, False)]
)
async def test_what_is_worth_another_try(
    session: aiohttp.ClientSession, secrets: SecretFiles, status: int, is_final: bool
) -> None:
    with web_server() as server:
        server.answers.put((status, {"Retry-After": "7"}))
        with pytest.raises(DeliveryError, match=f"HTTP status {status}") as caught:
            await events_to(server, session, secrets).send(MESSAGE)
    assert (caught.value.is_final, caught.value.after_seconds) == (is_final, 7.0)


async def test_a_redirect_is_not_followed(
    session: aiohttp.ClientSession, secrets: SecretFiles
) -> None:
    with web_server() as server, web_server() as elsewhere:
        server.answers.put((307, {"Location": f"{elsewhere.url}/inside"}))
        with pytest.raises(DeliveryError, match="HTTP status 307") as caught:
            await events_to(server, session, secrets).send(MESSAGE)
        assert elsewhere.posted.empty()
    assert caught.value.is_final


async def test_an_error_does_not_say_the_secret_address(
    session: aiohttp.ClientSession, secrets: SecretFiles
) -> None:
    channel = SlackChannel.model_validate({"urlFrom": {"secret": "any", "key": "url"}})
    sender = SlackSender(session=session, channel=channel, secrets=secrets, cluster="")
    with pytest.raises(DeliveryError, match=r"'url'.*'any'"):
        await sender.send(MESSAGE)
    for url in ("http://127.0.0.1:1/s3cret", "no address s3cret", "http://[s3cret"):
        write_secret(secrets.folder, "any", url=url)
        with pytest.raises(DeliveryError) as caught:
            await sender.send(MESSAGE)
        assert "s3cret" not in str(caught.value)


async def test_a_mail_with_starttls_and_a_password(secrets: SecretFiles) -> None:
    authority = new_authority()
    write_secret(secrets.folder, "any", user="ada", password=WORDS, ca=authority.pem.decode())
    with mail_server(tls=server_tls(authority, secrets.folder)) as server:
        channel = MailChannel.model_validate(
            {
                "host": "127.0.0.1",
                "port": server.port,
                "sender": "drumline@example.com",
                "recipients": ["nlp@example.com", "ops@example.com"],
                **{
                    f"{name}From": {"secret": "any", "key": at}
                    for name, at in [("username", "user"), ("password", "password"), ("ca", "ca")]
                },
            }
        )
        sender = MailSender(channel=channel, secrets=secrets, cluster="")
        await sender.send(MESSAGE)
        got = server.next()
    assert got.in_tls
    assert base64.b64decode(got.login) == f"\0ada\0{WORDS}".encode()
    assert (got.sender, got.recipients) == (
        "drumline@example.com",
        ("nlp@example.com", "ops@example.com"),
    )
    assert not missing(got.mail["Subject"], "research/llama", "Hang")
    assert "drumline report llama -n research" in got.mail.get_content()


async def test_no_mail_leaves_in_the_clear_where_starttls_is_asked_for(
    secrets: SecretFiles,
) -> None:
    with mail_server() as server:
        channel = MailChannel(
            host="127.0.0.1",
            port=server.port,
            sender="drumline@example.com",
            recipients=["nlp@example.com"],
        )
        sender = MailSender(channel=channel, secrets=secrets, cluster="")
        with pytest.raises(DeliveryError, match="SMTPNotSupportedError"):
            await sender.send(MESSAGE)
        assert server.received.empty()


@pytest.mark.parametrize(("code", "is_final"), [(550, True), (450, False)])
async def test_a_recipient_that_is_refused(secrets: SecretFiles, code: int, is_final: bool) -> None:
    with mail_server() as server:
        server.refusals["ada@example.com"] = code
        channel = MailChannel(
            host="127.0.0.1", port=server.port, security="none", sender="drumline@example.com"
        )
        sender = MailSender(channel=channel, secrets=secrets, cluster="")
        chosen = PendingMessage(change=a_change(), channel="any", recipient="ada@example.com")
        with pytest.raises(DeliveryError, match=str(code)) as caught:
            await sender.send(chosen)
        assert caught.value.is_final is is_final
        with pytest.raises(DeliveryError, match="no recipients") as caught:
            await sender.send(MESSAGE)
        assert caught.value.is_final


async def test_a_mail_that_was_taken_is_not_sent_again_for_a_refused_farewell(
    secrets: SecretFiles,
) -> None:
    with mail_server() as server:
        server.farewell = "421 too late"
        channel = MailChannel(
            host="127.0.0.1",
            port=server.port,
            security="none",
            sender="drumline@example.com",
            recipients=["nlp@example.com"],
        )
        await MailSender(channel=channel, secrets=secrets, cluster="").send(MESSAGE)
        assert server.next().recipients == ("nlp@example.com",)


@pytest.mark.parametrize("host", ["smtp..example.com", f"{'s' * 64}.example.com"])
async def test_a_host_that_is_no_name_ends_one_attempt_and_not_the_notifier(
    secrets: SecretFiles, host: str
) -> None:
    channel = MailChannel(host=host, sender="drumline@example.com", recipients=["a@example.com"])
    with pytest.raises(DeliveryError, match="no answer"):
        await MailSender(channel=channel, secrets=secrets, cluster="").send(MESSAGE)


async def test_authorities_with_comments_and_a_password_in_other_alphabets(
    secrets: SecretFiles,
) -> None:
    """Bundles of public authorities have names with accents in their comments."""
    authority = new_authority()
    bundle = f"# Issuer: Főtanúsítvány\n{authority.pem.decode()}"
    write_secret(secrets.folder, "any", user="ada", password=MORE_WORDS, ca=bundle)
    with mail_server(tls=server_tls(authority, secrets.folder)) as server:
        settings = {
            "host": "127.0.0.1",
            "port": server.port,
            "sender": "drumline@example.com",
            "recipients": ["nlp@example.com"],
            "caFrom": {"secret": "any", "key": "ca"},
        }
        channel = MailChannel.model_validate(settings)
        await MailSender(channel=channel, secrets=secrets, cluster="").send(MESSAGE)
        assert server.next().in_tls
        login = {f"{name}From": {"secret": "any", "key": key} for name, key in LOGIN}
        channel = MailChannel.model_validate({**settings, **login})
        with pytest.raises(DeliveryError, match="must be ASCII"):
            await MailSender(channel=channel, secrets=secrets, cluster="").send(MESSAGE)
        assert server.received.empty()
