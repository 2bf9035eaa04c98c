"""`drumline decide -f FILES`: what the operator would do with these objects, cluster untouched."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from drumline.cli import command
from drumline.cli.command import Commands, Output
from drumline.cli.errors import BadInput

if TYPE_CHECKING:
    from drumline.api.policy import SchedulingPolicy
    from drumline.cli.decide.cluster import Cluster
    from drumline.cli.decide.job_decisions import Line
    from drumline.scheduling.model import Policy

_DESCRIPTION: Final = """\
Decide as the operator would: which waiting jobs start and where, who has to make room, who waits,
why, and what would help. Reads nodes, pods, queues, pools, priority classes and jobs from files;
no cluster is asked, nothing is changed. A job that was never applied is judged beside the rest.
"""
_EXAMPLES: Final = """\
examples:
  kubectl get nodes,pods,gpupools,trainingqueues,priorityclasses,trainingjobs -A -o json > all.json
  drumline decide -f all.json
  drumline decide -f all.json -f new-job.yaml -o wide
  drumline decide -f all.json --policy values.yaml -o json
"""


def add(commands: Commands) -> None:
    """Add the subcommand."""
    decide = command.add(
        commands,
        "decide",
        run=run,
        summary="what the operator would do with the jobs of some files",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    decide.add_argument(
        "-f",
        "--file",
        action="append",
        required=True,
        metavar="FILE",
        help="objects as `kubectl get -o yaml` or `-o json` prints them; - is standard input; may"
        " be repeated",
    )
    decide.add_argument(
        "-o", "--output", choices=("table", "wide", "json"), default="table", help="default: table"
    )
    decide.add_argument(
        "--policy",
        metavar="FILE",
        help="the owner's choices: the chart's values, or what is below `scheduling` in them",
    )
    decide.add_argument(
        "--no-forecast",
        action="store_true",
        help="do not work out when waiting jobs will probably start: that takes some hundred times"
        " as long as to decide",
    )


def run(chosen: argparse.Namespace, environment: Mapping[str, str]) -> Output:
    """The verdicts, rendered.

    Raises:
        BadInput: a file is not usable.
    """
    del environment
    from drumline.cli import manifests as documents  # noqa: PLC0415 - `--help` needs none of it
    from drumline.cli.decide import cluster  # noqa: PLC0415 - `--help` needs none of it

    policy = _policy(chosen.policy)
    found = cluster.read(documents.documents(chosen.file))
    verdicts = _verdicts(found, policy, forecast=not chosen.no_forecast)
    if chosen.output == "json":
        return Output(text=_json(found, verdicts))
    return Output(text=_table(found, verdicts, wide=chosen.output == "wide"))


def _verdicts(found: Cluster, policy: Policy, *, forecast: bool) -> list[Line]:
    from drumline.cli.decide.job_decisions import lines  # noqa: PLC0415
    from drumline.scheduling.cycle import decide  # noqa: PLC0415
    from drumline.scheduling.forecast import expected_starts  # noqa: PLC0415

    snapshot, pending, now = found.snapshot, found.pending, found.as_of
    decisions = decide(snapshot=snapshot, pending=pending, policy=policy, now=now)
    starts = (
        expected_starts(snapshot=snapshot, pending=pending, policy=policy, now=now)
        if forecast and decisions.blocked
        else ()
    )
    return lines(decisions, snapshot=snapshot, pending=pending, starts=starts)


def _policy(name: str | None) -> Policy:
    from drumline.api.policy import SchedulingPolicy  # noqa: PLC0415
    from drumline.controller.conversion.jobs import policy_of  # noqa: PLC0415

    return policy_of(_choices(name) if name else SchedulingPolicy())


def _choices(name: str) -> SchedulingPolicy:
    from drumline.api.load import ApiError, parse  # noqa: PLC0415
    from drumline.api.policy import SchedulingPolicy  # noqa: PLC0415
    from drumline.cli.manifests import documents  # noqa: PLC0415

    found = documents([name])
    if len(found) != 1:
        raise BadInput(f"{name}: one mapping of choices is wanted, {len(found)} are in it")
    inside: Any = found[0].raw.get("scheduling")
    at = "scheduling" if isinstance(inside, dict) else ""
    raw = cast("dict[str, Any]", inside) if at else found[0].raw
    try:
        return parse(SchedulingPolicy, raw, at=at)
    except ApiError as error:
        raise found[0].blame(error.path, str(error)) from None


def _table(found: Cluster, verdicts: list[Line], *, wide: bool) -> str:
    from drumline.cli.decide.table import table  # noqa: PLC0415
    from drumline.cli.formatting import plain  # noqa: PLC0415

    remarks = "".join(f"{plain(remark)}\n" for remark in found.remarks)
    return table(verdicts, now=found.as_of, wide=wide) + remarks


def _json(found: Cluster, verdicts: list[Line]) -> str:
    import msgspec  # noqa: PLC0415

    document = {"asOf": found.as_of, "verdicts": verdicts, "remarks": found.remarks}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"
