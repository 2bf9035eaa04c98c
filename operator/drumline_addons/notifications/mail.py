"""Send messages by SMTP with STARTTLS or TLS, in a thread because smtplib blocks."""

from __future__ import annotations

import asyncio
import smtplib
import ssl
from contextlib import closing, suppress
from dataclasses import dataclass
from email.message import EmailMessage

from drumline_addons.notifications.channels import MailChannel
from drumline_addons.notifications.delivery import ATTEMPT_SECONDS, DeliveryError
from drumline_addons.notifications.messages import mail_message
from drumline_addons.notifications.record import PendingMessage
from drumline_addons.notifications.secret_files import SecretFiles
from drumline_addons.notifications.webhook import trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class MailSender:
    """Sender of mail to the channel's recipients, or to the recipient that the job chose.

    Attributes:
        channel: server and recipients.
        secrets: password.
        cluster: name of the cluster for people.
    """

    channel: MailChannel
    secrets: SecretFiles
    cluster: str

    async def send(self, message: PendingMessage) -> None:
        """Send a change as plain text.

        Raises:
            DeliveryError: the message was not accepted.
        """
        recipients = [message.recipient] if message.recipient else list(self.channel.recipients)
        if not recipients:
            raise DeliveryError(
                "the channel has no recipients, and the job names none", is_final=True
            )
        mail = mail_message(
            message.change,
            sender=self.channel.sender,
            recipients=recipients,
            cluster=self.cluster,
        )
        try:
            await asyncio.to_thread(self._hand_over, mail)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            is_final = all(code >= 500 for code in codes)
            raise DeliveryError(f"recipients refused: {codes}", is_final=is_final) from None
        except smtplib.SMTPAuthenticationError:
            raise DeliveryError("user name or password refused") from None
        except smtplib.SMTPResponseException as error:
            code, is_final = error.smtp_code, error.smtp_code >= 500
            raise DeliveryError(f"SMTP status {code}", is_final=is_final) from None
        # Python encodes a host name before it resolves it: an invalid name is a UnicodeError.
        except (smtplib.SMTPException, OSError, UnicodeError) as error:
            raise DeliveryError(f"no answer: {type(error).__name__}") from None

    def _hand_over(self, mail: EmailMessage) -> None:
        trust = trusted(self.secrets, self.channel.ca_from)
        with closing(self._connected(trust)) as server:
            if self.channel.security == "starttls":
                server.starttls(context=trust)
            user, password = self.channel.username_from, self.channel.password_from
            if user is not None and password is not None:
                words = [self.secrets.read(key) for key in (user, password)]
                # smtplib encodes both as ASCII.
                if not all(map(str.isascii, words)):
                    raise DeliveryError("user name and password must be ASCII")
                server.login(*words)
            server.send_message(mail)
            # The mail is accepted. An error of QUIT must not send it again.
            with suppress(smtplib.SMTPException, OSError):
                server.quit()

    def _connected(self, trust: ssl.SSLContext) -> smtplib.SMTP:
        host, port = self.channel.host, self.channel.port
        if self.channel.security == "tls":
            return smtplib.SMTP_SSL(host, port, timeout=ATTEMPT_SECONDS, context=trust)
        return smtplib.SMTP(host, port, timeout=ATTEMPT_SECONDS)
