"""The parts of the suite: what each runs, its time budget, and what it needs of the machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.seeds import seed_of
from tools import lint
from tools.suite.selection import ESSENTIAL, SEED_VARIABLE, SLICE

PYTEST = (sys.executable, "-m", "pytest", "-q")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One process: a pytest run, unless `command` says otherwise."""

    name: str
    budget_minutes: float
    """About 1.4 times the expected time on two idle cores. A longer run prints a warning."""
    paths: tuple[str, ...] = ()
    """Folders and options of pytest."""
    command: tuple[str, ...] = ()
    """Instead of pytest; its exit code is the number of failed checks."""
    checks: int = 0
    """How many that command makes."""
    group: str = "processes"
    """Parts of one group run beside one another, and beside no other part without niceness."""
    niceness: int = 0
    """19: it takes what processor time the part beside it leaves."""
    seeds: tuple[str, ...] = ()
    """Environment variables that pick its slices of matrices."""
    needs_binaries: bool = False
    """Those of Kubernetes: the part of that name runs before it."""
    needs_nodes: bool = False
    """Real kubelets."""
    choice: str = ESSENTIAL
    """Which of its tests run: see `tools.suite.selection`."""

    @property
    def environment(self) -> dict[str, str]:
        """What it adds: each seed, from the environment or from `tests.seeds`."""
        names = self.seeds if self.command else (SEED_VARIABLE, *self.seeds)
        return {name: str(seed_of(name)) for name in names}

    @property
    def title(self) -> str:
        """Name, budget and seeds."""
        seeds = "".join(f", {name}={value}" for name, value in self.environment.items())
        return f"{self.name} (budget {self.budget_minutes:g} min{seeds})"

    def arguments(self, *, results: str) -> list[str]:
        """The command line; pytest writes each test's outcome and duration to `results`."""
        nice = ("nice", f"--adjustment={self.niceness}") if self.niceness else ()
        pytest = (*PYTEST, f"--choose={self.choice}", f"--junitxml={results}", *self.paths)
        command = self.command or pytest
        return [*nice, *command]


NOT_IN_CI = tuple(
    f"--deselect=tests/e2e/{name}"
    for name in (
        "test_preemption.py::test_at_the_deadline_the_last_verified_step_counts",
        "test_preemption.py::test_nothing_up_to_the_last_verified_step_is_done_again",
        # a rank that a busy machine keeps from parking in time is rightly replaced
        "test_recovery_of_members.py::test_the_ranks_of_the_other_pod_kept_their_processes",
    )
)
LEFT_OUT = (
    "--ignore=tests/e2e/test_mutants.py",
    # 512 processes and floods on nodes that share two cores: the operator's probes may starve
    "--ignore=tests/e2e/test_hostile_users.py",
    "--ignore=tests/e2e/test_elastic_scripts.py",  # in `make test-all WHAT=scripts`
    # minutes until a node that lost its power is back
    "--ignore=tests/e2e/test_operators.py",
    "--ignore=tests/e2e/test_helm.py",  # in `make test-all WHAT=helm`
    "--ignore=tests/e2e/test_bucket.py",  # in `make test-all WHAT=buckets`
    "--ignore=tests/e2e/test_karpenter.py",  # in `make test-all WHAT=karpenter-nodes`
    "--ignore=tests/e2e/test_assigned_users.py",  # likewise
    "--ignore=tests/e2e/test_node_check.py",  # likewise in WHAT=e2e: the measures are in gloo
)
"""Of the end-to-end tests: in `make test-all WHAT=e2e`, as is test_mutants.py, whose mutants are in
trainer and matrix too. The deadline is also in integration."""
BINARIES = (
    *("helm", "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
    *("kubectl", "kwok", "kubelet", "helm-unittest", "kubeconform", "versitygw"),
    "jobset",
)
BINARIES_GROUP = "binaries"
"""Group of the part that must end before any other begins."""
PARTS = (
    # instant where the cache has them; otherwise about 10 min for all of two cores
    Part(
        name="binaries",
        budget_minutes=12,
        command=(sys.executable, "-m", "tools.cluster.binaries", *BINARIES),
        checks=1,
        group=BINARIES_GROUP,
    ),
    # side by side as they follow: integration's waits would end late beside eight ranks
    Part(
        name="integration",
        budget_minutes=7,
        paths=(
            "tests/integration",
            "tests/browser",
            # an operator before this one is not in every checkout: `make test-all WHAT=upgrade`
            "--ignore=tests/integration/operator/test_upgrade.py",
            "--ignore=tests/integration/operator/loss",  # a part of its own
            "--ignore=tests/integration/operator/karpenter",  # `make test-all WHAT=karpenter`
            "--ignore=tests/integration/operator/kueue",  # `make test-all WHAT=kueue`
        ),
        needs_binaries=True,
    ),
    Part(
        name="trainer",
        budget_minutes=9,
        paths=("tests/unit/trainer", "tests/unit/agent", "tests/gloo", "tests/faults"),
        seeds=("BUCKET_SEED",),
        needs_binaries=True,  # a store for checkpoints in buckets
    ),
    Part(name="layouts", budget_minutes=3, paths=("tests/layouts",), seeds=("LAYOUT_SEED",)),
    Part(name="matrix", budget_minutes=3, paths=("tests/matrix",), seeds=("MATRIX_SEED",)),
    # every point and distortion, outages and clocks: `make test-all WHAT=crash` and `loss`
    Part(
        name="loss",
        budget_minutes=2,
        paths=(
            "tests/integration/operator/loss/test_crash_points.py",
            "tests/integration/operator/loss/test_distortions.py",
        ),
        seeds=("LOSS_SEED",),
        needs_binaries=True,
    ),
    # on one cluster: two side by side took longer than one after the other
    Part(
        name="e2e",
        budget_minutes=9,
        # what waits longest, in `make test-all WHAT=e2e`; mutants are also in trainer and
        # matrix, the deadline in integration
        paths=("tests/e2e", *LEFT_OUT, *NOT_IN_CI),
        seeds=("SCRIPT_SEED",),
        group="nodes",
        needs_binaries=True,
        needs_nodes=True,
    ),
    # beside all others: waits for API servers, nodes and peers leave processors for one process
    Part(
        name="unit",
        budget_minutes=14,
        paths=(
            *("tests/unit", "tests/property"),
            *("--ignore=tests/unit/trainer", "--ignore=tests/unit/agent"),
        ),
        seeds=(
            *("LIFE_SEED", "VACANCY_SEED", "DECIDE_SEED", "EXPLORATION_SEED"),
            *("HOSTILE_SEED", "TOLD_SEED"),
        ),
        niceness=19,
    ),
    Part(
        name="lint",
        budget_minutes=1,
        command=(sys.executable, "-m", "tools.lint", "style"),
        checks=len(lint.STYLE),
        niceness=19,
    ),
    # three minutes of a processor; `make check` has those of changed modules
    Part(
        name="types",
        budget_minutes=6,
        command=(sys.executable, "-m", "tools.lint", "types"),
        checks=len(lint.TYPES),
        niceness=19,
        choice=SLICE,
    ),
)


def chosen(names: Sequence[str], *, choice: str = ESSENTIAL) -> list[Part]:
    """Return the named parts and the part they need, or all parts.

    Unless it is named, a command runs with one choice of tests alone.

    Raises:
        LookupError: There is no such part; the message names those there are.
    """
    for name in names:
        if not any(part.name == name for part in PARTS):
            raise LookupError(f"no part {name!r}; known: {', '.join(each.name for each in PARTS)}")
    parts = [
        replace(part, choice=choice)
        for part in PARTS
        if part.name in names or not (names or (part.command and part.choice != choice))
    ]
    binaries = PARTS[0]
    if binaries not in parts and any(part.needs_binaries for part in parts):
        return [binaries, *parts]
    return parts


def obstacle(part: Part) -> str | None:
    """Why this machine cannot run the part; what apt can install, the cluster tool installs."""
    if not part.needs_nodes:
        return None
    if os.geteuid() != 0:
        return "real nodes need root (network and mount namespaces); run `sudo make test PART=e2e`"
    if shutil.which("containerd") is None and shutil.which("apt-get") is None:
        return "real nodes need containerd, and there is no apt-get to install it with"
    return None
