"""The grammar of `drumline doctor`."""

from __future__ import annotations

import argparse
from typing import Final

from drumline_cli.options import add_context, add_namespace, add_output

DESCRIPTION: Final = """\
Examine a cluster, before Drumline is installed or after: what would keep jobs from running or
surprise somebody, and what to do about each. Nothing is changed; what you may not read is said so.
With --probe small pods, deleted again, also try the trainer's image, the limit of locked memory and
a NetworkPolicy on two nodes of each pool. The exit code is 1 if a check failed.
"""
EXAMPLES: Final = """\
examples:
  drumline doctor
  drumline doctor --context production -o json
  drumline doctor --probe --namespace research
  helm test drumline --namespace drumline-system --logs   (the same, within the cluster)
"""


def add_arguments(doctor: argparse.ArgumentParser) -> None:
    """Every option of the command."""
    doctor.add_argument(
        "--system-namespace",
        default="drumline-system",
        metavar="NAMESPACE",
        help="where the operator is, or will be; default: drumline-system",
    )
    doctor.add_argument(
        "--probe", action="store_true", help="also try things out with pods, which are deleted"
    )
    add_namespace(doctor, "of these pods; default: that of the context")
    doctor.add_argument("--image", default="", help="of these pods; default: the trainer's")
    doctor.add_argument(
        "--pull-secret",
        action="append",
        default=[],
        metavar="NAME",
        help="a Secret of their namespace with a registry's credentials; may be repeated",
    )
    doctor.add_argument(
        "--seconds", type=int, default=300, metavar="N", help="for each step of it; default: 300"
    )
    add_output(doctor, "text", "json")
    add_context(doctor)
