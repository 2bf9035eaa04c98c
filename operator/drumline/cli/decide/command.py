"""Runs `drumline decide -f FILES`: one scheduling cycle on objects from files."""

from __future__ import annotations

import argparse

from drumline.cli.decide import cluster
from drumline.cli.decide.cluster import ClusterInput
from drumline.cli.decide.cycle import decided, read_policy
from drumline.cli.decide.job_decisions import JobDecision
from drumline.cli.decide.json_output import as_json
from drumline.cli.decide.table import table
from drumline.cli.manifests import read_manifests
from drumline.cli.output import Output
from drumline_trainer.contract import plain


def run(chosen: argparse.Namespace) -> Output:
    """The decisions, rendered. The exit code is 1 if an object could not be read.

    Raises:
        BadInput: a file is not usable.
    """
    policy = read_policy(chosen.policy)
    cluster_input = cluster.read(read_manifests(chosen.file))
    decisions = decided(cluster_input, policy, forecast=not chosen.no_forecast)
    wide = chosen.output == "wide"
    text = (
        as_json(cluster_input, decisions)
        if chosen.output == "json"
        else _table(cluster_input, decisions, wide=wide)
    )
    return Output(text=text, exit_code=1 if cluster_input.unreadable else 0)


def _table(cluster_input: ClusterInput, decisions: list[JobDecision], *, wide: bool) -> str:
    unread = (f"unreadable: {problem}" for problem in cluster_input.unreadable)
    remarks = "".join(f"{plain(remark)}\n" for remark in (*unread, *cluster_input.remarks))
    return table(decisions, now=cluster_input.as_of, wide=wide) + remarks
