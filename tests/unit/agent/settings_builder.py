from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from drumline_agent.base.settings import AgentSettings

_SETTINGS = AgentSettings(
    namespace="default",
    job="job",
    job_uid="job-uid",
    pod_uid="pod-uid",
    pod_ip="10.0.0.7",
    index=0,
    generation=1,
    checkpoint_folder=None,
    checkpoint_bucket=None,
    token=b"token",
    address="0.0.0.0",
    port=29400,
    store_port=29500,
    store_is_open=False,
    gang_folder=Path("/var/run/drumline/gang"),
    termination_log=Path("/dev/termination-log"),
    grace_seconds=30,
    peer_lost_seconds=30,
    teardown_seconds=30,
    rank_module="drumline_trainer.rank",
    snapshot_folder=Path("/dev/shm/drumline/pod-uid"),  # noqa: S108 - as in a pod
)


def agent_settings(**changes: Any) -> AgentSettings:
    """Settings of a pod, with some fields changed."""
    return replace(_SETTINGS, **changes)
