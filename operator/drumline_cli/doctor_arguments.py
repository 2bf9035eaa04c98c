"""The grammar of `drumline doctor`."""

from __future__ import annotations

import argparse
from typing import Final

from drumline_cli.options import add_context, add_namespace, add_output, whole_number

DESCRIPTION: Final = """\
Examine a cluster, before or after Drumline is installed. Reports problems that prevent jobs from
running or affect other users, with a fix for each. Nothing is changed. Objects that you may not
read are reported. With --probe, small temporary pods also test the trainer's image, the limit of
locked memory and a NetworkPolicy on two nodes of each pool. The exit code is 1 if a check failed.
"""
EXAMPLES: Final = """\
examples:
  drumline doctor
  drumline doctor --context production -o json
  drumline doctor --probe --namespace research
  helm test drumline --namespace drumline-system --logs   (the same checks, inside the cluster)
"""
PROBE_SECONDS: Final = 300


def add_arguments(doctor: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    doctor.add_argument(
        "--system-namespace",
        default="drumline-system",
        metavar="NAMESPACE",
        help="namespace of the operator, installed or planned (default: drumline-system)",
    )
    doctor.add_argument(
        "--probe", action="store_true", help="also run tests in pods, which are deleted afterwards"
    )
    add_namespace(doctor, "namespace of the test pods (default: the context's namespace)")
    doctor.add_argument(
        "--image", default="", help="with --probe: image of the pods (default: the trainer's image)"
    )
    doctor.add_argument(
        "--pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="with --probe: Secret with registry credentials for the pods; may be repeated",
    )
    doctor.add_argument(
        "--seconds",
        type=whole_number(1, 86_400),
        metavar="N",
        help=f"with --probe: timeout of each test, in seconds (default: {PROBE_SECONDS})",
    )
    add_output(doctor, "text", "json")
    add_context(doctor)
