"""What a part came to, from what pytest or a command left."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tools.suite.__main__ import report, totals
from tools.suite.parts import PARTS, Part, chosen
from tools.suite.results import Result, result_of
from tools.suite.selection import SLICE

TESTS = """
import pytest

def test_passes(): pass
def test_fails(): assert False
def test_skips(): pytest.skip("why")

@pytest.fixture
def broken(): raise OSError
def test_has_no_fixture(broken): pass
"""
ROOT = Path(__file__).parents[3]
PYTEST_PART = Part(name="these", budget_minutes=1, paths=("tests",))
ELSEWHERE = {
    "tests/faults/agent/test_own_script.py": "tests/e2e/test_own_scripts.py",
    "tests/faults/agent/test_recovery.py": "tests/matrix/test_slice.py",
    "tests/faults/agent/test_state.py": "tests/e2e/test_own_scripts.py",
    "tests/faults/agent/test_training.py": "tests/matrix/test_slice.py",
    "tests/gloo/parallelism/test_expert.py": "tests/layouts/test_layouts.py",
    "tests/gloo/parallelism/test_pipeline.py": "tests/layouts/test_layouts.py",
    "tests/e2e/test_accelerators.py": "tests/integration/operator/test_devices.py",
    "tests/e2e/test_archive.py": "tests/integration/operator/test_archive.py",
    "tests/e2e/test_disruption.py": "tests/e2e/test_life_of_a_job.py",
    "tests/e2e/test_doctor.py": "tests/integration/cli/test_doctor.py",
    "tests/e2e/test_elastic.py": "tests/integration/operator/test_elastic.py",
    "tests/e2e/test_held_scripts.py": "tests/faults/agent/test_commands.py",
    "tests/e2e/test_layouts.py": "tests/layouts/test_layouts.py",
    "tests/e2e/test_preemption.py": "tests/e2e/test_life_of_a_job.py",
    "tests/e2e/test_recovery_in_place.py": "tests/e2e/test_life_of_a_job.py",
    "tests/e2e/test_recovery_of_members.py": "tests/e2e/test_life_of_a_job.py",
    "tests/e2e/test_scripts_under_faults.py": "tests/e2e/test_own_scripts.py",
}
OPERATOR = "tests/integration/operator"
TURNS = {
    "tests/e2e/test_claims.py": "tests/unit/cli/claims/test_command.py",
    "tests/e2e/test_run.py": "tests/integration/cli/test_run.py",
    "tests/e2e/test_shell.py": "tests/unit/cli/jobs/test_terminal_pod.py",
    "tests/e2e/test_starts.py": f"{OPERATOR}/test_starts.py",
    f"{OPERATOR}/test_captures.py": "tests/property/test_capture.py",
    f"{OPERATOR}/test_compute_domains.py": "tests/unit/controller/cache/test_devices.py",
    f"{OPERATOR}/test_endings.py": f"{OPERATOR}/test_gangs.py",
    f"{OPERATOR}/test_foreign_pods_give_back.py": f"{OPERATOR}/test_workloads.py",
    f"{OPERATOR}/test_guarded_nodes.py": "tests/unit/controller/scheduler/test_guard.py",
    f"{OPERATOR}/test_hostile.py": "tests/property/test_hostile_objects.py",
    f"{OPERATOR}/test_idle.py": "tests/unit/lifecycle/test_idle.py",
    f"{OPERATOR}/test_moves.py": "tests/property/test_scheduling_lifetimes.py",
    f"{OPERATOR}/test_notifications.py": "tests/unit/addons/notifications/test_notifier.py",
    f"{OPERATOR}/test_partitions.py": "tests/property/test_scheduling_partitions.py",
    f"{OPERATOR}/test_planner.py": "tests/unit/lifecycle/test_planner.py",
    f"{OPERATOR}/test_queue_owners.py": f"{OPERATOR}/test_platform_objects.py",
    f"{OPERATOR}/test_scheduler_faults.py": "tests/property/test_scheduling_faults.py",
    f"{OPERATOR}/test_scope.py": "tests/unit/test_scope.py",
    f"{OPERATOR}/test_signing_keys.py": "tests/unit/controller/app/test_signing_key_files.py",
    f"{OPERATOR}/test_spot.py": f"{OPERATOR}/test_disruption.py",
    f"{OPERATOR}/test_takeover.py": "tests/integration/kube/test_leader_election.py",
    f"{OPERATOR}/test_template_pods.py": f"{OPERATOR}/test_gangs.py",
    f"{OPERATOR}/test_volumes.py": "tests/property/test_attached_volumes.py",
    "tests/gloo/nccl/test_flight_records.py": "tests/gloo/nccl/test_process_group.py",
    "tests/gloo/nccl/test_recovery.py": "tests/matrix/test_slice.py",
    "tests/gloo/parallelism/test_tensor.py": "tests/layouts/test_layouts.py",
    "tests/gloo/parallelism/test_workers.py": "tests/layouts/test_settings.py",
    "tests/gloo/test_background_saves.py": "tests/gloo/test_checkpoint.py",
    "tests/gloo/test_elastic.py": f"{OPERATOR}/test_elastic.py",
    "tests/gloo/test_held_out_pipelines.py": "tests/layouts/test_layouts.py",
    "tests/gloo/test_loading_copies.py": "tests/gloo/test_shared_reads.py",
    "tests/gloo/test_preferences.py": "tests/gloo/test_fine_tuning.py",
    "tests/gloo/test_rehearsal.py": "tests/unit/trainer/planner/test_rehearsal.py",
    "tests/gloo/test_step_beside_plain.py": "tests/gloo/test_parity.py",
    "tests/gloo/test_transformers_modules.py": "tests/gloo/test_transformers_tensor.py",
    "tests/gloo/test_transformers_tuning.py": "tests/gloo/test_transformers_tensor.py",
    "tests/layouts/test_adapters.py": "tests/gloo/test_fine_tuning.py",
    "tests/layouts/test_corrections.py": "tests/layouts/test_layouts.py",
    "tests/layouts/test_images.py": "tests/unit/trainer/data/test_image_dataset.py",
    "tests/layouts/test_numerics.py": "tests/unit/trainer/optimization/test_muon.py",
    "tests/layouts/test_offload.py": "tests/unit/trainer/memory/test_offloaded_optimizer.py",
}
"""Files that share places of a run (`of=`), each with what holds its feature in the other runs."""
COMMAND = Part(name="lint", budget_minutes=1, command=("lint",), checks=4)


def test_counts_and_durations_are_those_of_pytest(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    (tmp_path / "test_these.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", f"--junitxml={results}", "--rootdir=."]
    done = subprocess.run(
        [*command, "-c", "/dev/null"], cwd=tmp_path, capture_output=True, check=False
    )

    result = result_of(PYTEST_PART, code=done.returncode, minutes=0.5, results=results)

    assert (result.passed, result.failed, result.skipped) == (1, 2, 1)
    assert {duration.test for duration in result.durations} == {
        f"test_these::test_{name}" for name in ("passes", "fails", "skips", "has_no_fixture")
    }
    assert result.failures == (
        "test_these::test_fails: assert False",
        'test_these::test_has_no_fixture: failed on setup with "OSError"',
    )


@pytest.mark.parametrize("text", [None, "", "<testsui"])
def test_a_pytest_that_was_killed_is_a_failure(tmp_path: Path, text: str | None) -> None:
    results = tmp_path / "results.xml"
    if text is not None:
        results.write_text(text)
    assert result_of(PYTEST_PART, code=-9, minutes=0.5, results=results).failed == 1


@pytest.mark.parametrize(("code", "counts"), [(0, (4, 0)), (3, (1, 3)), (-9, (0, 4)), (99, (0, 4))])
def test_the_exit_code_of_a_command_counts_its_failed_checks(
    tmp_path: Path, code: int, counts: tuple[int, int]
) -> None:
    result = result_of(COMMAND, code=code, minutes=0.5, results=tmp_path / "none")
    assert (result.passed, result.failed) == counts


def test_a_part_over_its_budget_is_a_warning_and_no_failure(
    capsys: pytest.CaptureFixture[str],
) -> None:
    in_time = Result(part=COMMAND, minutes=0.9, passed=4)
    slow = Result(part=COMMAND, minutes=30.0, passed=4)
    assert totals([in_time, slow]) == (8, 0, 0)
    report([in_time, slow, Result(part=COMMAND, minutes=1, failed=2)], minutes=5)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if line.startswith("warning")] == [
        "warning: lint is over its budget; slow machines do not fail",
    ]
    assert printed[-1] == "FAILED lint"
    assert "OVER BUDGET" in slow.summary
    assert "OVER BUDGET" not in in_time.summary


def test_every_test_file_is_in_some_part_or_left_out_for_a_reason() -> None:
    named = [path for part in PARTS for path in part.paths if not path.startswith("-")]
    files = [path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")]
    missing = {str(file) for file in files if not any(file.is_relative_to(path) for path in named)}
    # make test-all WHAT=libraries
    libraries = (
        "accelerate",
        "grpo",
        "huggingface",
        "jax",
        "lightning",
        "lm_eval",
        "peft",
        "record_tokens",
        "records",
        "torchao",
        "torchtitan",
        "trl",
    )
    assert missing == {f"tests/libraries/test_{name}.py" for name in libraries}
    options = {option for part in PARTS for option in part.paths if option.startswith("--ignore=")}
    ignored = {option.removeprefix("--ignore=") for option in options}
    assert ignored - set(named) == {
        "tests/e2e/test_assigned_users.py",
        "tests/e2e/test_bucket.py",
        "tests/e2e/test_elastic_scripts.py",
        "tests/e2e/test_hostile_users.py",
        "tests/e2e/test_mutants.py",
        "tests/e2e/test_node_check.py",
        "tests/e2e/test_helm.py",
        "tests/e2e/test_karpenter.py",
        "tests/e2e/test_operators.py",
        "tests/integration/operator/karpenter",
        "tests/integration/operator/kueue",
        "tests/integration/operator/loss",  # two of its files are a part of their own
        "tests/integration/operator/test_upgrade.py",
    }


def test_every_feature_keeps_a_real_path_in_make_test() -> None:
    """A file of which a run may take no test names the file that keeps its feature."""
    of_module = re.compile(
        r"^pytestmark = (?:\[[^\]]*|[^\n\[]*)pytest\.mark\.extended(?!\(keep=\d+\))(\()?",
        re.MULTILINE,
    )
    head = re.compile(r"\A.*?(?=^(?:async )?def |^@)", re.MULTILINE | re.DOTALL)
    without_path: dict[bool, set[str]] = {True: set(), False: set()}
    for file in (ROOT / "tests").rglob("test_*.py"):
        if (start := head.search(file.read_text())) and (mark := of_module.search(start.group())):
            without_path[mark.group(1) is None].add(str(file.relative_to(ROOT)))
    assert without_path == {True: ELSEWHERE.keys(), False: TURNS.keys()}
    for kept in (*ELSEWHERE.values(), *TURNS.values()):
        assert (ROOT / kept).exists()
        assert kept not in ELSEWHERE
        assert kept not in TURNS


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_part_says_every_seed_of_its_tests(part: Part) -> None:
    """Whoever sees it fail repeats it with them."""
    options = (path for path in part.paths if path.startswith("--ignore="))
    ignored = [ROOT / option.removeprefix("--ignore=") for option in options]
    used: set[str] = set()
    for folder in (ROOT / path for path in part.paths if not path.startswith("-")):
        for file in [folder] if folder.is_file() else folder.rglob("*.py"):
            if not any(file.is_relative_to(path) for path in ignored):
                used |= set(re.findall(r'seed_of\("(\w+)"\)', file.read_text()))
    assert set(part.seeds) == used - {"SUITE_SEED"}
    assert all(f", {name}=" in part.title for name in used)


def test_a_slice_may_hold_no_test_of_a_part(tmp_path: Path) -> None:
    results = tmp_path / "results.xml"
    results.write_text('<testsuites><testsuite tests="0" /></testsuites>')
    none = partial(result_of, code=5, minutes=0.1, results=results)
    assert none(PYTEST_PART).failed == 1
    assert none(replace(PYTEST_PART, choice=SLICE)).failed == 0


def test_a_slice_repeats_no_checks_of_commands() -> None:
    names = [part.name for part in chosen([], choice=SLICE)]
    assert names == [part.name for part in PARTS if part.name != "lint"]
    assert "types" not in [part.name for part in chosen([])]
    assert [part.name for part in chosen(["types"])] == ["types"]
    assert {part.choice for part in chosen(["unit"], choice=SLICE)} == {SLICE}


def test_a_part_is_run_with_the_binaries_that_it_needs() -> None:
    names = {
        name: [part.name for part in chosen([name])] for name in ("unit", "integration", "e2e")
    }
    assert names == {
        "unit": ["unit"],
        "integration": ["binaries", "integration"],
        "e2e": ["binaries", "e2e"],
    }
    with pytest.raises(LookupError, match="no part 'end'"):
        chosen(["end"])
