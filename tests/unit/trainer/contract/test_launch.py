"""What the agent of a template's pod is told of it."""

from __future__ import annotations

import pytest

from drumline_trainer.contract import ContractError, Launch, LaunchSettings


@pytest.mark.parametrize("launch", Launch)
def test_what_is_written_is_read(launch: Launch) -> None:
    settings = LaunchSettings(launch=launch)
    assert LaunchSettings.parse(settings.encode()) == settings


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "launch"),
        ('{"launch": "Direct"}', "launch: 'Direct'"),
        ("{" + " " * 20_000 + "}", "over the limit of 16384"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        LaunchSettings.parse(text)
