"""The integration tests against each minor of Kubernetes that the cluster tool knows.

`python -m tools.suite.minors [--only 1.34] [ARGUMENT of pytest...]`
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence

from tools.cluster.binaries import CONTROL_PLANE, KUBERNETES_VERSIONS
from tools.suite.parts import PYTEST

FOLDERS = tuple(f"tests/integration/{name}" for name in ("api", "kube", "operator"))


def main(arguments: Sequence[str]) -> int:
    """Run all of them; returns how many minors failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.suite.minors", description=__doc__)
    parser.add_argument("--only", choices=KUBERNETES_VERSIONS, help="one minor")
    asked, of_pytest = parser.parse_known_args(arguments)
    minors = [asked.only] if asked.only else list(KUBERNETES_VERSIONS)
    outcomes = {minor: _run(minor, of_pytest) for minor in minors}
    for minor, code in outcomes.items():
        print(f"Kubernetes {KUBERNETES_VERSIONS[minor]}: {'failed' if code else 'passed'}")
    return sum(map(bool, outcomes.values()))


def _run(minor: str, of_pytest: Sequence[str]) -> int:
    environment = {**os.environ, "KUBERNETES_MINOR": minor}
    print(f"Kubernetes {KUBERNETES_VERSIONS[minor]}", flush=True)
    names = (*CONTROL_PLANE, "kwok", "helm", "jobset")
    build = [sys.executable, "-m", "tools.cluster.binaries", *names]
    built = subprocess.run(build, env=environment, check=False).returncode
    if built:
        return built
    tests = [*PYTEST, *(of_pytest or FOLDERS)]
    return subprocess.run(tests, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
