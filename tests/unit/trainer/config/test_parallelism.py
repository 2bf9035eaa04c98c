"""What ranks that do not wait for each other cannot be combined with."""

from __future__ import annotations

from typing import Any

import pytest

from drumline_contract.config import ConfigError, TrainerConfig

SERVER = "parameter-server"
ASYNCHRONOUS = {"data_parallel": SERVER, "server": {"mode": "asynchronous"}}
LOCAL = {"data_parallel": "ddp", "local_sgd": {"every_steps": 20}}


@pytest.mark.parametrize(
    ("words", "raw"),
    [
        ("works with ddp and fsdp", {"parallelism": {**LOCAL, "data_parallel": "zero1"}}),
        ("works with ddp and fsdp", {"parallelism": {**LOCAL, "data_parallel": SERVER}}),
        ("experts have others", {"parallelism": {"data_parallel": SERVER, "expert": 2}}),
        ("single ranks", {"parallelism": {**ASYNCHRONOUS, "tensor": 2}}),
        ("use bf16", {"parallelism": ASYNCHRONOUS, "precision": "fp16"}),
        ("50 is no multiple of the 20 steps", {"parallelism": LOCAL}),
        ("50 is no multiple of the 7", {"parallelism": ASYNCHRONOUS, "log_every_steps": 7}),
        ("muon", {"parallelism": {"data_parallel": SERVER}, "optimizer": {"kind": "muon"}}),
        (
            "hold the state already",
            {"parallelism": {"data_parallel": SERVER}, "memory": {"offload_optimizer": "cpu"}},
        ),
        (
            "is for fsdp, not ddp",
            {"memory": {"shard_gradients": True}, "parallelism": {"data_parallel": "ddp"}},
        ),
        (
            "a pipeline sums gradients",
            {
                "memory": {"shard_gradients": True},
                "parallelism": {"data_parallel": "fsdp", "pipeline": 2},
            },
        ),
        ("servers: must be greater", {"parallelism": {"server": {"servers": 0}}}),
        ("max_staleness: must not", {"parallelism": {"server": {"max_staleness": -1}}}),
        ("outer_momentum: must be", {"parallelism": {"local_sgd": {"outer_momentum": 1.0}}}),
    ],
)
def test_what_cannot_work_is_refused(words: str, raw: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=words):
        TrainerConfig.from_dict(raw)


def test_all_ranks_meet_where_they_know_of_each_other() -> None:
    checkpoint = {"every_steps": 40}
    of = TrainerConfig.from_dict
    assert of({"checkpoint": checkpoint}).meets_every_steps == 1
    assert of({"checkpoint": checkpoint, "parallelism": LOCAL}).meets_every_steps == 20
    assert of({"checkpoint": checkpoint, "parallelism": ASYNCHRONOUS}).meets_every_steps == 10
