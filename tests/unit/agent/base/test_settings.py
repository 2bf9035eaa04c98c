from __future__ import annotations

from pathlib import Path

import pytest

from drumline_agent.base.settings import AgentSettings, AgentSettingsError
from tests.unit.agent.settings_builder import agent_settings


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_bytes(b"secret\n")
    return {
        "DRUMLINE_NAMESPACE": "default",
        "DRUMLINE_JOB": "job",
        "DRUMLINE_JOB_UID": "uid",
        "DRUMLINE_POD_UID": "pod",
        "DRUMLINE_POD_IP": "10.0.0.7",
        "DRUMLINE_INDEX": "3",
        "DRUMLINE_GENERATION": "2",
        "DRUMLINE_TOKEN_FILE": str(token),
    }


def test_a_pod_needs_only_what_the_operator_sets(environ: dict[str, str], tmp_path: Path) -> None:
    assert AgentSettings.from_environment(environ) == agent_settings(
        job_uid="uid",
        pod_uid="pod",
        index=3,
        generation=2,
        token=(tmp_path / "token").read_bytes(),
        snapshot_folder=Path("/dev/shm/drumline/pod"),  # noqa: S108 - memory of the pod
    )


def test_a_pod_with_an_ipv6_address_answers_on_ipv6(environ: dict[str, str]) -> None:
    environ["DRUMLINE_POD_IP"] = "fd00::7"
    assert AgentSettings.from_environment(environ).address == "::"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DRUMLINE_JOB_UID", "", "DRUMLINE_JOB_UID: must be set"),
        ("DRUMLINE_INDEX", "-1", "DRUMLINE_INDEX: must be an integer"),
        ("DRUMLINE_INDEX", "٣", "DRUMLINE_INDEX: must be an integer"),
        ("DRUMLINE_GENERATION", "0", "DRUMLINE_GENERATION: must be an integer in 1"),
        ("DRUMLINE_TOKEN_FILE", "/no/such/file", "token file: .*No such file"),
        ("DRUMLINE_TOKEN_FILE", "/dev/null", "token file: /dev/null is empty"),
    ],
)
def test_what_is_wrong_is_named(
    environ: dict[str, str], name: str, value: str, message: str
) -> None:
    environ[name] = value
    with pytest.raises(AgentSettingsError, match=message):
        AgentSettings.from_environment(environ)
