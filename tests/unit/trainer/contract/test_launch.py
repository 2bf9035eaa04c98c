"""What the agent of a template's pod is told of it."""

from __future__ import annotations

import json

import pytest

from drumline_contract import ContractError, Launch, LaunchSettings, NoticeSignal


@pytest.mark.parametrize(
    "settings",
    [
        *(LaunchSettings(launch=launch) for launch in Launch),
        LaunchSettings(
            launch=Launch.PER_GPU,
            notice_signal=NoticeSignal.NONE,
            notice_file="/data/end",
            watches_activity=True,
            progress_patterns=(r"at  (?P<step>\d+)\t", "é"),
            preload=("torch", "torch.distributed"),
        ),
    ],
    ids=str,
)
def test_what_is_written_is_read(settings: LaunchSettings) -> None:
    assert LaunchSettings.parse(settings.encode()) == settings


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", "launch"),
        ('{"launch": "Direct"}', "launch: 'Direct'"),
        ('{"launch": "PerGpu", "notice_signal": "SIGKILL"}', "notice_signal: 'SIGKILL'"),
        ('{"launch": "PerGpu", "progress_patterns": "a"}', "must be a list of at most 8"),
        ('{"launch": "PerGpu", "progress_patterns": [1]}', "must be a string"),
        ('{"launch": "PerGpu", "progress_patterns": ["\\ud800"]}', "must be a string"),
        ('{"launch": "PerGpu", "preload": ["a b"]}', "must be names of Python modules"),
        (f'{{"launch": "PerGpu", "preload": {json.dumps(["a"] * 17)}}}', "a list of at most 16"),
        ("{" + " " * 40_000 + "}", "over the limit of 32768"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, complaint: str) -> None:
    with pytest.raises(ContractError, match=complaint):
        LaunchSettings.parse(text)
