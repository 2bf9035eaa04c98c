"""Where messages go, what a job may choose, and what a configuration is refused for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from drumline_addons.notifications.channels import (
    ConfigurationError,
    NotificationSettings,
    destinations,
    parsed,
    refused_choices,
)
from drumline_addons.notifications.events import PATIENCE, NewsKind
from tests.unit.addons.notifications.jobs import a_change, job

SLACK = {"slack": {"urlFrom": {"secret": "slack", "key": "url"}}}
MAIL = {"host": "mail.example.com", "sender": "drumline@example.com"}


def settings(**config: Any) -> NotificationSettings:
    return parsed(json.dumps(config).encode())


OPEN = settings(
    channels={
        "slack-nlp": SLACK | {"jobsMayChoose": True},
        "slack-ops": SLACK,
        "mail": {"jobsMayChoose": True, "mail": MAIL | {"allowedDomains": ["example.com"]}},
        "post": {"jobsMayChoose": True, "mail": MAIL},
    },
    routes=[
        {"channels": ["slack-nlp"], "queues": ["nlp"], "kinds": ["Failed", "Stuck"]},
        {"channels": ["slack-ops"], "namespaces": ["vision"]},
    ],
)


def names(*, choice: str = "", **change: Any) -> list[str]:
    to = destinations(OPEN, a_change(**change), choice=choice)
    return [f"{each.channel}:{each.recipient}".rstrip(":") for each in to]


def test_routes_are_by_queue_namespace_and_kind() -> None:
    assert names() == ["slack-nlp"]
    assert names(kind=NewsKind.FINISHED) == []
    assert names(queue="vision") == []
    assert names(queue="vision", namespace="vision") == ["slack-ops"]


def test_no_message_goes_to_a_place_twice() -> None:
    assert names(choice="slack-nlp, slack-nlp") == ["slack-nlp"]


@pytest.mark.parametrize(
    ("choice", "goes_to", "refused"),
    [
        ("slack-nlp", ["slack-nlp"], 0),
        (" slack-nlp ,mail:ada@example.com ", ["slack-nlp", "mail:ada@example.com"], 0),
        ("mail", ["mail"], 0),
        ("mail:ada@EXAMPLE.com", ["mail:ada@EXAMPLE.com"], 0),
        ("slack-ops", [], 1),
        ("nowhere", [], 1),
        ("https://169.254.169.254/latest", [], 1),
        ("slack-nlp:https://example.com", [], 1),
        ("mail:ada@example.com.evil.org", [], 1),
        ("mail:ada@sub.example.com", [], 1),
        ("mail:ada@evil.org@example.com", [], 1),
        ("mail:ada@example.com\r\nBcc: all@example.com", [], 1),
        ("mail:-oQ/tmp@example.com", [], 1),
        ("post:ada@example.com", [], 1),
        (",".join(f"mail:a{number}@example.com" for number in range(20)), 8, 12),
        ("", [], 0),
    ],
)
def test_a_job_chooses_among_what_is_open_to_it(
    choice: str, goes_to: list[str] | int, refused: int
) -> None:
    chosen = names(choice=choice, queue="vision")
    assert (len(chosen) if isinstance(goes_to, int) else chosen) == goes_to
    assert refused_choices(OPEN, job(notify=choice)) == refused


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"channels": {"a": {}}}, "exactly one of slack, webhook and mail"),
        ({"channels": {"a": {"mail": MAIL, **SLACK}}}, "exactly one"),
        ({"channels": {"a": {"slack": {"url": "https://x"}}}}, r"channels\.a\.slack\.urlFrom"),
        ({"channels": {"a": {"webhook": {}}}}, "exactly one of url and urlFrom"),
        ({"channels": {"a": {"webhook": {"url": "file:///etc/passwd"}}}}, "https://HOST"),
        ({"channels": {"a": {"webhook": {"url": "https://u:p@host"}}}}, "without a user"),
        ({"channels": {"A b": SLACK}}, "channels.A b"),
        ({"channels": {"a": {"mail": MAIL | {"sender": "x\ny@b"}}}}, "sender"),
        (
            {
                "channels": {
                    "a": {
                        "mail": MAIL
                        | {
                            "security": "none",
                            "usernameFrom": {"secret": "s", "key": "u"},
                            "passwordFrom": {"secret": "s", "key": "p"},
                        }
                    }
                }
            },
            "unencrypted",
        ),
        (
            {"channels": {"a": SLACK}, "routes": [{"channels": ["b"]}]},
            r"routes\[0\]\.channels: channel 'b' does not exist; known: a",
        ),
        ({"routes": [{"channels": []}]}, "routes.0.channels"),
        ({"chanels": {}}, "chanels"),
        ({"channels": {"a": {"slack": {"urlFrom": {"secret": "../x", "key": "k"}}}}}, "secret"),
        ({"channels": {"a": {"slack": {"urlFrom": {"secret": "x", "key": ".."}}}}}, "key"),
        ({"stuckAfter": {"queuedSeconds": 1}}, "stuckAfter.queuedSeconds"),
    ],
)
def test_what_a_configuration_is_refused_for(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        settings(**config)


def test_a_configuration_is_bounded_before_it_is_read() -> None:
    with pytest.raises(ConfigurationError, match="exceed the maximum"):
        parsed(b" " * 300_000)
    with pytest.raises(ConfigurationError, match="JSON"):
        parsed(b"channels: {}")


def test_the_owner_says_when_waiting_is_news() -> None:
    assert settings().stuck_after.patience == PATIENCE
    chosen = settings(
        stuckAfter={"forecastSeconds": 60, "queuedSeconds": 70, "startingSeconds": 80}
    ).stuck_after.patience
    assert (
        chosen.after_forecast_seconds,
        chosen.without_forecast_seconds,
        chosen.starting_seconds,
    ) == (60, 70, 80)
