"""From the end of a rank's process to a fault."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from drumline_agent.processes.rank_faults import RankFaults
from drumline_agent.processes.rank_process import RankProcess
from drumline_agent.rank_protocol.placement import Placement
from drumline_agent.state.rank_status import RankStatusStore
from drumline_contract import ExitCode, FaultClass
from tests.unit.agent.settings_builder import agent_settings


def a_rank(number: int, *, attempt: int, error: str = "") -> RankProcess:
    placement = Placement(
        rank=number,
        world_size=2,
        local_rank=number,
        local_world_size=2,
        store_port=1,
        generation=1,
        attempt=attempt,
        address="127.0.0.1",
    )
    output = SimpleNamespace(last_line="step 3")
    facts = SimpleNamespace(placement=placement, kill_reason=None, error=error, output=output)
    return cast("RankProcess", facts)


def test_all_that_is_killed_in_an_attempt_short_of_memory_was_killed_for_memory(
    tmp_path: Path,
) -> None:
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 3\n")
    faults = RankFaults(status=RankStatusStore(agent_settings()), index=0, cgroup=tmp_path)
    assert faults.process_ended(a_rank(0, attempt=0), -9).fault_class is FaultClass.INFRASTRUCTURE

    counts.write_text("oom_kill 5\n")
    both = [faults.process_ended(a_rank(number, attempt=1), -9).fault_class for number in (0, 1)]
    assert both == [FaultClass.OUT_OF_MEMORY] * 2
    assert faults.process_ended(a_rank(1, attempt=1), -11).fault_class is FaultClass.APPLICATION
    assert faults.process_ended(a_rank(0, attempt=2), -9).fault_class is FaultClass.INFRASTRUCTURE


def test_a_failed_gpu_has_an_exit_code_of_its_own(tmp_path: Path) -> None:
    faults = RankFaults(status=RankStatusStore(agent_settings()), index=0, cgroup=tmp_path)
    ecc = "AcceleratorError: CUDA error: uncorrectable ECC error encountered"
    ends = [(1, ecc), (ExitCode.DEVICE, "DeviceError: 4 GPUs were asked for"), (1, "ValueError: x")]
    codes = [
        faults.process_ended(a_rank(0, attempt=0, error=error), code).exit_code
        for code, error in ends
    ]
    assert codes == [ExitCode.DEVICE, ExitCode.DEVICE, ExitCode.APPLICATION]
