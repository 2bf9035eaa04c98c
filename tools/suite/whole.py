"""`make test-all WHAT=...`: all tests and cells that `make test` leaves out.

Each prints its own count. Tests that take too long for every change are listed here, not skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tools.suite.parts import PYTEST

MODULE = (sys.executable, "-m")
RACE = "tests/integration/operator/test_guarded_nodes.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """One command that runs everything of a kind."""

    summary: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


WHOLES = {
    "extended": Whole(
        summary="every marked test that `make test` leaves out, 20 min; ARGS=trainer for one part",
        command=(*MODULE, "tools.suite", "--extended"),
    ),
    "layouts": Whole(
        summary="every layout of the training matrix, five hours; ARGS='--cases 100' for fewer",
        command=(*MODULE, "tests.layouts"),
    ),
    "settings": Whole(
        summary="every option of the trainer beside every value of every axis of the layouts; 20 "
        "min, ARGS='--only lora' for the cells of a name",
        command=(*MODULE, "tests.layouts", "--settings"),
    ),
    "adapters": Whole(
        summary="the layouts of `make test` with all adapters and optimizers",
        command=(*PYTEST, "tests/layouts"),
        environment={"LAYOUTS": "all"},
    ),
    "libraries": Whole(
        summary="the client's adapters in the libraries themselves, and fine-tuning beside TRL; "
        "5 min, ARGS=steps for a step beside their trainers",
        command=(*MODULE, "tests.libraries"),
    ),
    "buckets": Whole(
        summary="savers to a bucket are killed, or a request or a reply is lost, at every request; "
        "and a job on real kubelets that goes on from its bucket; 30 min",
        command=(*PYTEST, "-rP", "tests/gloo/test_bucket_kills.py", "tests/e2e/test_bucket.py"),
        environment={"DRUMLINE_BUCKET_KILLS": "1000"},
    ),
    "matrix": Whole(
        summary="every fault at every moment in every role; writes docs/kill-matrix.md; 20 min",
        command=(*MODULE, "tests.matrix"),
    ),
    "nccl": Whole(
        summary="the same on the stand-in for NCCL; writes docs/kill-matrix-nccl.md; 45 min",
        command=(*MODULE, "tests.matrix", "--backend", "nccl"),
    ),
    "hangs": Whole(
        summary="a thousand injected hangs of each kind, and how many are blamed rightly; 2 min",
        command=(*MODULE, "tests.unit.agent.leader.hang_campaign"),
    ),
    "idle": Whole(
        summary="gangs that work for MINUTES=30 under real agents: none may be called idle",
        command=(*MODULE, "tests.faults.agent.idle_soak"),
    ),
    "constructions": Whole(
        summary="ranks of 1,024-rank runs of 8B, 70B and 405B on no GPU, beside their bills; 3 min",
        command=(*MODULE, "tools.bench.constructions"),
    ),
    "gpu": Whole(
        summary="the checks of `make gpu` on processors, smaller; ten minutes",
        command=(*MODULE, "tools.gpu", "--device", "cpu"),
    ),
    "e2e": Whole(
        summary="the end-to-end tests with those that are too long for `make test`",
        # Karpenter ends a node for good
        command=(*PYTEST, "tests/e2e", "--ignore=tests/e2e/test_karpenter.py"),
    ),
    "scripts": Whole(
        summary="people's own scripts under every fault; ARGS='-k ddp-L1' for one job; 40 min",
        command=(
            *(*PYTEST, "-rP", "--timeout=1800"),
            *("tests/e2e/test_scripts_under_faults.py", "tests/e2e/test_elastic_scripts.py"),
        ),
        environment={"DRUMLINE_SCRIPTS": "all"},
    ),
    "accelerators": Whole(
        summary="device plugins of other vendors and a DRA driver on real kubelets; 3 min",
        command=(*PYTEST, "tests/e2e/test_accelerators.py"),
        environment={"DRUMLINE_ACCELERATORS": "all"},
    ),
    "disruption": Whole(
        summary="every component that announces a node's end, on real nodes",
        command=(*PYTEST, "tests/e2e/test_disruption.py"),
        environment={"DRUMLINE_SIGNALS": "all"},
    ),
    "properties": Whole(
        summary="the scheduler against brute force on tens of thousands of small clusters",
        command=(
            *(*PYTEST, "-rP", "--timeout=3600"),
            *(
                f"tests/property/test_scheduling_{name}.py"
                for name in ("pairs", "optimum", "lifetimes", "sequences")
            ),
            "tests/property/test_growing_world.py",
        ),
        environment={"DRUMLINE_PROPERTIES": "all"},
    ),
    "decide": Whole(
        summary="drumline decide beside what the operator then does, on 1,000 small clusters",
        command=(*PYTEST, "-rP", "--timeout=3600", "tests/property/test_decide_answers.py"),
        environment={"DRUMLINE_PROPERTIES": "all"},
    ),
    "hostile": Whole(
        summary="10^5 hostile objects of every kind through caches, cycles and plans",
        command=(*PYTEST, "-rP", "--timeout=3600", "tests/property/test_hostile_objects.py"),
        environment={"DRUMLINE_PROPERTIES": "all"},
    ),
    "exploration": Whole(
        summary="3 jobs on 3 nodes in every order of steps, two crashes in any, and a failing pod",
        command=(*PYTEST, "-rP", "--timeout=7200", "tests/property/test_exploration.py"),
        environment={"DRUMLINE_PROPERTIES": "all"},
    ),
    "guard": Whole(
        summary="a Deployment that scales, on the real kube-scheduler, against a preempting gang: "
        "100 rounds, 10 min",
        command=(*PYTEST, "-rP", "--timeout=3600", RACE),
        environment={"DRUMLINE_RACE_ROUNDS": "100", "DRUMLINE_RACE_SETTLE_SECONDS": "1"},
    ),
    "crash": Whole(
        summary="the operator ends at every write of every life of a job, in four ways; 40 min, a "
        "third with DRUMLINE_CRASHES_A_LIFE=3",
        command=(*PYTEST, "-rP", "tests/integration/operator/loss/test_crash_points.py"),
        environment={"DRUMLINE_CRASH_POINTS": "all"},
    ),
    "loss": Whole(
        summary="each kind of object with each distortion on its way and three seeds; 20 min",
        command=(
            *(*PYTEST, "-rP", "tests/integration/operator/loss"),
            "--ignore=tests/integration/operator/loss/test_crash_points.py",
        ),
        environment={"DRUMLINE_DISTORTIONS": "all"},
    ),
    "kueue": Whole(
        summary="one team after another moves from the real Kueue, on the same nodes, and back; "
        "10 min to build Kueue once, then 1 min",
        command=(*PYTEST, "-rP", "tests/integration/operator/kueue"),
    ),
    "karpenter": Whole(
        summary="gangs on nodes that the real Karpenter makes; built once, then ten minutes",
        command=(*PYTEST, "-rP", "tests/integration/operator/karpenter"),
    ),
    "karpenter-nodes": Whole(
        summary="the real Karpenter ends a real node under a job that trains; 5 min",
        command=(*PYTEST, "-rP", "tests/e2e/test_karpenter.py"),
    ),
    "upgrade": Whole(
        summary="100 running jobs, the operator before this one, this one, and that one again",
        command=(*PYTEST, "-rs", "tests/integration/operator/test_upgrade.py"),
    ),
    "helm": Whole(
        summary="the chart installed, upgraded, rolled back, uninstalled and back under training, "
        "and under OpenShift's users; 10 min",
        command=(*PYTEST, "tests/e2e/test_helm.py", "tests/e2e/test_assigned_users.py"),
    ),
    "release": Whole(
        summary="build/release verified, installed without a registry, made again; 10 min, and "
        "10 more where it is not there",
        command=(*PYTEST, "-rP", "--timeout=3600", "tools/release"),
    ),
    "minors": Whole(
        summary="integration on each minor of Kubernetes; ARGS='--only 1.34' for one; 40 min",
        command=(*MODULE, "tools.suite.minors"),
    ),
    "monitoring": Whole(
        summary="Drumline under faults on a real Prometheus: every panel, every alert; 9 min, "
        "ARGS=--record for the test in `make test`",
        command=(*MODULE, "tests.monitoring"),
    ),
    "soak-alerts": Whole(
        summary="jobs train undisturbed and no alert may fire: 120 min, ARGS='--soak 20' for 20",
        command=(*MODULE, "tests.monitoring", "--soak", "120"),
    ),
    "samples": Whole(
        summary="damaged checkpoints, recoveries in a row, a rehearsal, a script undisturbed",
        command=(
            *(*PYTEST, "-rP", "tests/gloo/test_checkpoint.py", "tests/gloo/test_recovery.py"),
            *("tests/gloo/test_rehearsal.py", "tests/faults/agent/test_state.py"),
            *("-k", "flipped or leave_nothing_behind or packed or newest_snapshot"),
        ),
        environment={"DRUMLINE_SAMPLES": "all"},
    ),
}


def main(arguments: Sequence[str]) -> int:
    """Run one of them; without a name list them."""
    if not arguments or arguments[0] not in WHOLES:
        for name, whole in WHOLES.items():
            print(f"make test-all WHAT={name:12} {whole.summary}")
        return 2 if arguments else 0
    whole = WHOLES[arguments[0]]
    command = [*whole.command, *arguments[1:]]
    environment = {**os.environ, **whole.environment}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
