"""A plan, and a score, as columns for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from drumline_cli.columns import columns, gib
from drumline_cli.formatting import amount, count, duration, percent, slice_words
from drumline_cli.plan.advice_text import advice_text
from drumline_cli.plan.job_file import JobFile
from drumline_cli.plan.model import Plan, WrittenLayout
from drumline_cli.plan.rehearse import Rehearsal
from drumline_contract.layout import Layout
from drumline_contract.plain_text import plain
from drumline_planner.auto import recompute_words
from drumline_planner.constants import CALIBRATED
from drumline_planner.memory import Bill
from drumline_planner.score import ErrorSummary, Scored
from drumline_planner.search import Planned, RejectedLayout
from drumline_planner.step_time import StepTime
from drumline_planner.words import large
from drumline_scheduler.model import Gang

_HEADINGS: Final = (
    "LAYOUT",
    "MICRO-BATCH",
    "RECOMPUTE",
    "STEP",
    "TOKENS/S/GPU",
    "MFU",
    "MEMORY",
    "WAITS FOR",
)
_WORDS: Final = (0, 2, 7)
"""Columns among these that contain no number."""


def plan_text(plan: Plan) -> str:
    """Return the whole answer."""
    # Phase 1: the question, with the memory that a layout may use.
    goal = plan.request.goal
    config = goal.config
    length = config.tokens_per_sample
    lines = [
        plain(plan.request.title),
        (
            f"batch {count(config.global_batch_size)} x {count(length)} tokens,"
            f" {config.precision}{' with fp8' if config.fp8 else ''}; {gib(goal.capacity)} of"
            f" {gib(goal.cluster.gpu.memory_bytes)} usable"
        ),
        "",
    ]
    # Phase 2: notes that change how to read the table below.
    if plan.size is not None:
        lines += [plan.size.reason, ""]
    job = plan.request.job
    if goal.constants != CALIBRATED and job is not None:
        lines += [_correction(job), ""]
    if plan.rehearsal is not None:
        lines += [*_rehearsed(plan.rehearsal), ""]
    if plan.written is not None:
        lines += [_as_written(plan.written), ""]
    if plan.gang is not None:
        # The scheduler's view comes before the layouts, because it limits them.
        lines += _scheduler_request(plan.gang)
    if not plan.result.planned:
        lines += ["No layout fits.", ""]
    else:
        # Phase 3: the layouts. Memory and step details belong to the first one only.
        lines += [*layouts(plan.result.planned), ""]
        best = plan.result.planned[0]
        lines += ["MEMORY of the fullest rank of the first", *bill(best.bill), ""]
        lines += ["STEP of the first", *parts(best.time), *_cost(plan, best), ""]
    # Phase 4: other sizes, advice, and why layouts were refused.
    lines += _compared(plan)
    lines += _curve(plan.curve, price=plan.price)
    lines += [*advice_text(plan.advice, total_tokens=plan.tokens), *_refusals(plan)]
    return "\n".join(lines).rstrip() + "\n"


def score_text(scored: Sequence[Scored], errors: ErrorSummary) -> str:
    """Render all rows and a summary of the errors."""
    rows = [("LINE", "MODEL", "LAYOUT", "MEASURED", "PREDICTED", "ERROR", "MEMORY", "FITS")]
    for each in scored:
        measured, setup = each.measured, each.measured.setup
        model = setup.model
        # A row without a remark agrees: the prediction and the run had the same outcome.
        ran = "" if measured.ran == each.bill.fits else " (it did)" if measured.ran else " (no)"
        rows.append(
            (
                str(measured.line),
                f"{model.layers}x{model.hidden_size}",
                f"{setup.layout} b{setup.micro_batch}",
                "-" if measured.seconds is None else duration(measured.seconds),
                duration(each.predicted.seconds),
                "-" if each.error is None else f"{100 * each.error:+.1f} %",
                gib(each.bill.total),
                ("yes" if each.bill.fits else "no") + ran,
            )
        )
    lines = columns(rows)
    lines += [
        "",
        (
            f"{errors.rows} measured: mean absolute error {percent(errors.mean_absolute)},"
            f" nine of ten within {percent(errors.ninetieth)},"
            f" rank correlation {errors.spearman:.3f}, plan regret {percent(errors.regret)}"
        ),
    ]
    # A figure without rows is left out. For example, no row may have measured memory.
    for name, value in (
        ("with one anchor row per code base", errors.anchored),
        ("fits-or-not right", errors.fits),
        ("memory: mean absolute error", errors.memory),
    ):
        lines += [] if value is None else [f"{name}: {percent(value)}"]
    return "\n".join(lines) + "\n"


def layouts(planned: Sequence[Planned]) -> list[str]:
    """Render one row per layout."""
    return columns([_HEADINGS, *(_cells(each) for each in planned)], left=_WORDS)


def bill(of: Bill) -> list[str]:
    """Render all lines of a memory bill, and the sum."""
    # Notes name the tensors behind a line, so a user can check the sum.
    rows = [(f"  {line.name}", gib(line.size), line.note) for line in of.lines]
    return columns([*rows, ("  sum", gib(of.total), f"of {gib(of.capacity)}")], left=(0, 2))


def parts(of: StepTime) -> list[str]:
    """Render the parts that take at least a thousandth of a step."""
    rows = [
        (f"  {part}", duration(seconds), percent(seconds / of.seconds))
        for part, seconds in sorted(of.parts.items(), key=lambda entry: -entry[1])
        # The same bound as in the picture: smaller parts do not explain a step.
        if seconds >= of.seconds / 1000
    ]
    return columns(rows)


def _rehearsed(rehearsal: Rehearsal) -> list[str]:
    """Return what was trained here, its memory, and a note about the correction."""
    sliced = rehearsal.rehearsed
    layout = Layout.of(sliced.config.parallelism, world_size=sliced.ranks)
    rows = [("  PART", "PREDICTED", "MEASURED", "TIMES")]
    rows += [
        (f"  {each.part}", gib(each.predicted), gib(each.measured), f"{each.factor:.3f}")
        for each in rehearsal.parts
    ]
    return [
        (
            f"REHEARSED on {rehearsal.gpu or 'processors'}: {layout}, three steps, the last"
            f" {duration(rehearsal.step_seconds)}"
        ),
        f"  smaller: {', '.join(sliced.smaller) or 'nothing'}",
        *columns(rows, left=(0,)),
        "  The memory estimates of all layouts are corrected by this result.",
    ]


def _correction(job: JobFile) -> str:
    """Return the correction by the measurements of the pool's running jobs."""
    # One factor for whole steps is older. Factors by part replace it.
    whole = f"{job.step_time_percent} %"
    if job.step_parts:
        whole = ", ".join(f"{part} {100 * factor:.0f} %" for part, factor in job.step_parts)
    return (
        f"Steps of this pool's jobs take {whole} of the predicted time. The times below are"
        " corrected by this factor."
    )


def _scheduler_request(gang: Gang) -> list[str]:
    """Return the request to the scheduler, if it is more than a number of pods."""
    # A fixed size without slices needs no sentence.
    lines: list[str] = []
    if gang.sizes:
        *most, last = map(str, gang.sizes)
        lines.append(f"It can run with {', '.join(most)} or {last} pods.")
    if gang.slices:
        slices = (
            slice_words(pods=each.pods, level=each.level, required=each.required)
            for each in gang.slices
        )
        lines.append(f"The scheduler is requested to use {', '.join(slices)}.")
    return [*lines, ""] if lines else []


def _as_written(written: WrittenLayout) -> str:
    needs = f"As written ({written.layout}) it needs {gib(written.bill.total)} and"
    if written.bill.fits:
        return f"{needs} fits; a step takes {duration(written.seconds)}."
    fix = written.change or "no small change helps; see the layouts below"
    return f"{needs} does NOT fit in {gib(written.bill.capacity)}; {fix}."


def _cells(planned: Planned) -> tuple[str, ...]:
    time = planned.time
    return (
        str(planned.layout),
        str(planned.setup.micro_batch),
        recompute_words(planned),
        duration(time.seconds),
        count(time.tokens_per_second / time.gpus),
        percent(time.mfu),
        gib(planned.bill.total),
        str(time.bottleneck),
    )


def _cost(plan: Plan, best: Planned) -> list[str]:
    if plan.price is None:
        return []
    # Price per hour, converted to one million tokens.
    each = plan.price * best.time.gpus / 3600 / best.time.tokens_per_second * 1e6
    lines = [f"  {amount(each)} for a million tokens"]
    if plan.tokens is not None:
        whole = amount(each * plan.tokens / 1e6)
        lines.append(f"  {whole} for {large(plan.tokens)} tokens")
    return lines


def _compared(plan: Plan) -> list[str]:
    """Render the layouts that the user named, and whether they fit."""
    if not plan.compared:
        return []
    capacity = plan.request.goal.capacity
    # A compared layout may be larger than the memory. FITS then shows NO.
    rows: list[tuple[str, ...]] = [(*_HEADINGS, "FITS")]
    refused: list[str] = []
    for text, each in zip(plan.request.compared_texts, plan.compared, strict=True):
        if isinstance(each, RejectedLayout):
            refused.append(f"{plain(text)}: {plain(each.reason)}")
        else:
            rows.append((*_cells(each), "yes" if each.bill.total <= capacity else "NO"))
    return ["COMPARED", *(columns(rows, left=_WORDS) if len(rows) > 1 else []), *refused, ""]


def _curve(curve: Sequence[tuple[int, Planned | None]], *, price: float | None) -> list[str]:
    if not curve:
        return []
    rows = [("GPUS", "LAYOUT", "STEP", "TOKENS/S", "MFU", "COST OF 1 M TOKENS")]
    for gpus, planned in curve:
        # A size without a fitting layout stays in the table, because it answers a question.
        if planned is None:
            rows.append((count(gpus), "does not fit", "-", "-", "-", "-"))
            continue
        speed = planned.time.tokens_per_second
        cost = "-" if price is None else amount(price * gpus / 3600 / speed * 1e6)
        rows.append(
            (
                count(gpus),
                str(planned.layout),
                duration(planned.time.seconds),
                count(speed),
                percent(planned.time.mfu),
                cost,
            )
        )
    return ["CURVE", *columns(rows, left=(1,)), ""]


def _refusals(plan: Plan) -> list[str]:
    result = plan.result
    lines = [f"{result.space} shapes considered, {result.examined} layouts computed."]
    refused = ", ".join(f"{name}: {number}" for name, number in sorted(result.refusals.items()))
    lines += [f"Refused: {refused}."] if refused else []
    # Three examples suffice. The counts above show all refusals.
    for rejected in result.rejected[:3]:
        outer = rejected.choice.outer
        place = ", remaining state on cpu" if outer.on_host else ""
        lines.append(
            f"  for example tensor {outer.tensor}, pipeline {outer.pipeline}, context"
            f" {outer.context}, micro-batch {outer.micro_batch}, recompute"
            f" {outer.recompute}{place}: {plain(rejected.reason)}"
        )
    return lines
