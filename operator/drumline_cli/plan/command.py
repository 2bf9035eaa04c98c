"""Runs `drumline plan`: the planner's answer, rendered."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from drumline.lifecycle.plan.memory_fit import worded_change
from drumline_cli.commands import Output
from drumline_cli.errors import BadInput, install_extra
from drumline_cli.manifests import read_text
from drumline_cli.plan import html, json_output, text
from drumline_cli.plan.job_file import JobFile, gang_asked
from drumline_cli.plan.model import Plan, WrittenLayout
from drumline_cli.plan.rehearse import rehearse
from drumline_cli.plan.request import PlanRequest, cluster_for, read_request
from drumline_contract.config import ConfigError
from drumline_contract.layout import Layout
from drumline_planner.auto import is_auto, smallest
from drumline_planner.ladder import advice
from drumline_planner.measured_rows import read_rows
from drumline_planner.memory import memory_bill
from drumline_planner.memory_check import check_memory
from drumline_planner.run_size import Deadline, NoSize, Objective, PickedSize, pick_size
from drumline_planner.score import score
from drumline_planner.search import Planned, SearchResult, evaluate, pareto, search
from drumline_planner.setup import TrainingSetup
from drumline_planner.space import Goal
from drumline_planner.step_time import step_time

_UNLIMITED = 1 << 62


def run(chosen: argparse.Namespace, _environment: Mapping[str, str]) -> Output:
    """Return the plan, or the score, rendered.

    Raises:
        BadInput: a file or a value is not usable.
    """
    # Scoring reads measured rows, and needs none of the other options.
    if chosen.score is not None:
        return _score(chosen)
    # `nan` fails the comparison too, so it is rejected here.
    for name in ("tokens", "price", "within"):
        value = getattr(chosen, name)
        if value is not None and not 0 < value < float("inf"):
            raise BadInput(f"--{name} must be above 0, got {value:g}")
    if chosen.within is not None and chosen.tokens is None:
        raise BadInput(
            "--within needs --tokens, because the duration of a run depends on its tokens"
        )
    plan = _plan(chosen)
    if chosen.pictures is not None:
        _draw(plan, folder=chosen.pictures)
    if chosen.output == "json":
        shown = json.dumps(json_output.plan_json(plan), indent=1) + "\n"
    elif chosen.output == "html":
        shown = html.page(plan)
    else:
        shown = text.plan_text(plan)
    # A plan without a layout is printed, but scripts see exit code 1.
    done = plan.result.planned and not isinstance(plan.size, NoSize)
    return Output(text=shown, exit_code=0 if done else 1)


def _plan(chosen: argparse.Namespace) -> Plan:
    # Phase 1: the request, and the number of GPUs if the user asked for the best one.
    request = read_request(chosen)
    curve = _curve(chosen, request)
    size = _size(chosen, curve)
    if isinstance(size, PickedSize):
        request = _of_size(chosen, request, size.sized.gpus)
    goal = request.goal
    # Phase 2: search. A rehearsal corrects the memory, so the search runs again.
    result = search(goal, best=chosen.top)
    rehearsal = None
    if chosen.rehearse:
        rehearsal = rehearse(_first(goal, result))
        goal = replace(goal, correction=rehearsal.correction)
        request = replace(request, goal=goal)
        result = search(goal, best=chosen.top)
        curve = _curve(chosen, request)
    # Phase 3: extras. Pictures need the front, which takes a further search.
    best = result.planned[0] if result.planned else None
    pictured = chosen.output == "html" or chosen.pictures is not None
    return Plan(
        request=request,
        result=result,
        advice=advice(goal, best, total_tokens=chosen.tokens),
        # A compared layout is computed even if it does not fit.
        compared=tuple(evaluate(goal, choice, capacity=_UNLIMITED) for choice in request.compared),
        written=None if request.job is None else _written(chosen, request.job, goal),
        gang=None if request.job is None else gang_asked(request.job),
        curve=tuple(curve) if len(curve) > 1 else (),
        front=pareto(goal) if pictured and best is not None else (),
        rehearsal=rehearsal,
        size=size,
        price=chosen.price,
        tokens=chosen.tokens,
    )


def _draw(plan: Plan, *, folder: Path) -> None:
    """Write the pictures.

    Raises:
        BadInput: matplotlib is missing or the folder cannot be written.
    """
    try:
        # matplotlib is a large and optional dependency.
        from drumline_cli.plan import charts  # noqa: PLC0415 - optional: the simulator extra
    except ImportError:
        raise BadInput(f"--pictures needs matplotlib. {install_extra('simulator')}") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in charts.drawn(plan).items():
            (folder / f"{name}.png").write_bytes(charts.png(figure))
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from None


def _curve(chosen: argparse.Namespace, request: PlanRequest) -> list[tuple[int, Planned | None]]:
    """Return the best layout of every number of GPUs in the range."""
    # One size without an objective needs no curve.
    if len(request.sizes) == 1 and chosen.by is None and chosen.within is None:
        return []
    goals = (_of_size(chosen, request, gpus).goal for gpus in request.sizes)
    planned = (next(iter(search(goal, best=1).planned), None) for goal in goals)
    return list(zip(request.sizes, planned, strict=True))


def _of_size(chosen: argparse.Namespace, request: PlanRequest, gpus: int) -> PlanRequest:
    cluster = cluster_for(chosen, gpus, job=request.job)
    title = f"{request.name} on {gpus} x {cluster.gpu.name}"
    return replace(request, title=title, goal=replace(request.goal, cluster=cluster))


def _size(
    chosen: argparse.Namespace, curve: list[tuple[int, Planned | None]]
) -> PickedSize | NoSize | None:
    """Return the number of GPUs that was asked for, by time, cost or deadline."""
    # Without an objective or deadline the largest number is planned.
    if chosen.by is None and chosen.within is None:
        return None
    deadline = None
    if chosen.within is not None:
        deadline = Deadline(tokens=chosen.tokens, days=chosen.within)
    objective = Objective(chosen.by or Objective.COST)
    return pick_size(curve, objective=objective, deadline=deadline)


def _first(goal: Goal, result: SearchResult) -> Planned:
    """Return the best layout, or the smallest if none fits."""
    # A layout that does not fit is rehearsed as well, since its estimate may be wrong.
    if result.planned:
        return result.planned[0]
    try:
        return smallest(goal)
    except ConfigError as error:
        raise BadInput(f"--rehearse: {error}") from None


def _written(chosen: argparse.Namespace, job: JobFile, goal: Goal) -> WrittenLayout | None:
    """Return the job's own layout on its own GPUs."""
    config, spec = job.config, job.spec
    cluster = cluster_for(chosen, job.gpus, job=job)
    # An automatic layout has no written form to check.
    check = None if is_auto(config) else check_memory(config, cluster=cluster)
    if check is None:
        return None
    layout = Layout.of(config.parallelism, world_size=job.gpus)
    setup = TrainingSetup.of(config, layout)
    change = check.change and (
        f"{worded_change(check.change, spec)} needs {check.change.needed_bytes / 2**30:.1f} GiB"
    )
    return WrittenLayout(
        layout=str(layout),
        bill=goal.correction.of(memory_bill(setup, capacity=cluster.gpu.memory_bytes)),
        seconds=step_time(setup, cluster, constants=goal.constants).seconds,
        change=change,
    )


def _score(chosen: argparse.Namespace) -> Output:
    # A table of rows has no page.
    if chosen.output == "html":
        raise BadInput("--score prints a table or JSON; remove -o html")
    content, _ = read_text(chosen.score)
    try:
        rows = read_rows(content)
    except ConfigError as error:
        raise BadInput(f"{chosen.score}: {error}") from None
    # Ranks and shares of nothing would look perfect.
    if not any(row.ran for row in rows):
        raise BadInput(
            f"{chosen.score}: no row is measured; add iteration_ms or memory_gb of runs that fit"
        )
    scored, errors = score(rows)
    if chosen.output == "json":
        return Output(text=json.dumps(json_output.score_json(scored, errors), indent=1) + "\n")
    return Output(text=text.score_text(scored, errors))
