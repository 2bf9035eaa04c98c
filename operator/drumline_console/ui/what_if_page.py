"""Render the what-if questions about a quota, a job or a new job, and the scheduler's answer.

Each kind of question has a form with a slider. The address contains the question, so it can be
shared. With scripts the answer follows the slider, otherwise a button sends the question.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from drumline.overview.nodes import node_rows
from drumline.overview.objects import ClusterObjects
from drumline_cli.decide.job_decisions import JobDecision, JobVerdict
from drumline_cli.decide.table import detail
from drumline_cli.decide.what_if import (
    Change,
    ChangedDecision,
    MoreQuota,
    NewJob,
    OtherSize,
    WhatIfAnswer,
)
from drumline_cli.errors import BadInput
from drumline_cli.formatting import many
from drumline_cli.markup import Markup, element, joined
from drumline_cli.start_text import start_text
from drumline_console.ui.action_pages import priority_choice
from drumline_console.ui.links import job_path
from drumline_console.ui.parts import NOTHING, document, foot, section, table

# Limits keep the answer and the computation small.
MOST_ROWS: Final = 50
MOST_NODES: Final = 10_000
MOST_GPUS: Final = 100_000
AS_IT_IS: Final = "unchanged"
_HEADS: Final = ("job", "queue", "pods", "GPUs", "now", "then", "starts", "why")


def question(fields: Mapping[str, str]) -> Change | None:
    """Return the question, or None if there is none.

    Raises:
        BadInput: the question is invalid.
    """
    # An empty choice of the form means no change.
    priority = fields.get("priority") or None
    match fields.get("ask"):
        case None:
            return None
        case "queue":
            # A negative number asks about a smaller quota.
            gpus = _number(fields, "gpus", low=-MOST_GPUS, high=MOST_GPUS)
            return MoreQuota(queue=_text(fields, "queue"), pool=_text(fields, "pool"), gpus=gpus)
        case "job":
            nodes = _number(fields, "nodes", low=1, high=MOST_NODES)
            return OtherSize(job=_text(fields, "job"), nodes=nodes, priority=priority)
        case "new":
            return NewJob(
                queue=_text(fields, "queue"),
                nodes=_number(fields, "nodes", low=1, high=MOST_NODES),
                # Zero GPUs is a CPU job. 64 is a bound against typing mistakes.
                gpus_per_node=_number(fields, "gpus", low=0, high=64),
                priority=priority,
            )
        # The address may be edited by hand, so an unknown kind is reported.
        case other:
            raise BadInput(f"ask must be queue, job or new, got {other!r}")


def what_if(cluster: ClusterObjects, asked: Change | None, answer: WhatIfAnswer | None) -> str:
    """Render the questions and the answer. None: another site linked to the question.

    Args:
        cluster: objects that were read.
        asked: the changed job. None: no question.
        answer: the answer.
    """
    lead = (
        "The scheduler computes what its next cycle would decide with this change, from the"
        " current objects. Nothing is changed."
    )
    parts = (
        element("nav", element("a", "\N{LEFTWARDS ARROW} all jobs", href="./")),
        element("header", element("h1", "What if"), element("p", lead, class_="lead")),
        # The answer comes first, because the user pressed the button for it.
        _answer(asked, answer),
        section("A queue had more GPUs", _of_queue(cluster, asked)),
        section("A job requested other nodes", _of_job(cluster, asked)),
        section("There was one more job", _of_new(cluster, asked)),
        foot(cluster.remarks, as_of=cluster.as_of),
    )
    return document("What if", joined(*parts), up="", script="what-if.js")


def in_words(change: Change) -> str:
    """Return the question as a sentence."""
    match change:
        case MoreQuota(queue=queue, pool=pool, gpus=gpus):
            amount = f"{many(abs(gpus), 'GPU')} {'more' if gpus >= 0 else 'fewer'}"
            return f"If queue {queue} had {amount} in pool {pool}"
        case OtherSize(job=job, nodes=nodes, priority=priority):
            rank = f" with priority {priority}" if priority else ""
            return f"If {job} requested {many(nodes or 1, 'node')}{rank}"
        case NewJob(queue=queue, nodes=nodes, gpus_per_node=gpus, priority=priority):
            rank = f" with priority {priority}" if priority else ""
            size = f"{many(nodes, 'node')} with {many(gpus, 'GPU')} each"
            return f"If a new job requested {size} from queue {queue}{rank}"


def _answer(asked: Change | None, answer: WhatIfAnswer | None) -> Markup:
    if asked is None:
        # The empty section stays in the page, since the script replaces it.
        return element("section", id="answer", hidden="")
    # A link of another site must not start an expensive computation.
    if answer is None:
        heading = element("h2", in_words(asked))
        why = element(
            "p", "You came from another site, so the question was not sent: press Ask below."
        )
        return element("section", heading, why, id="answer", aria_live="polite")
    rows = answer.changed[:MOST_ROWS]
    left = len(answer.changed) - len(rows)
    more = f"{many(left, 'job')} more would change. " if left > 0 else ""
    same = f"Nothing would change for {many(answer.unchanged, 'job')}." if answer.unchanged else ""
    nothing = element("p", "The next cycle would make the same decisions.")
    # `aria-live` lets screen readers read the new answer.
    return element(
        "section",
        element("h2", in_words(asked)),
        table("Answer", _HEADS, (_cells(row, as_of=answer.as_of) for row in rows))
        if rows
        else nothing,
        element("p", f"{more}{same}", class_="soft") if more or same else "",
        *(element("p", remark, class_="soft") for remark in answer.remarks),
        id="answer",
        aria_live="polite",
        aria_busy="false",
    )


def _cells(row: ChangedDecision, *, as_of: float) -> tuple[str, ...]:
    # A job can be absent on one side: it starts to exist, or its decision disappears.
    shown = row.then or row.now
    name: str = element("strong", row.job) if row.asked else row.job
    # The invented job has no page.
    known = row.now is not None or not row.asked
    link = element("a", name, href=job_path(row.job)) if known else name
    # No decision on both sides: only the job of the question appears like this.
    if shown is None:
        return (link, *([NOTHING] * (len(_HEADS) - 2)), "continues unchanged")
    return (
        link,
        shown.queue,
        str(shown.pods),
        str(shown.gpus),
        _verdict(row.now),
        element("strong", _verdict(row.then)),
        _starts(row, as_of=as_of),
        _why(row.then),
    )


def _verdict(decision: JobDecision | None) -> str:
    return "goes on" if decision is None else str(decision.verdict)


def _starts(row: ChangedDecision, *, as_of: float) -> str:
    then = _start(row.then, as_of=as_of)
    now = _start(row.now, as_of=as_of)
    # The current forecast is shown only if it differs.
    return then if now in {then, NOTHING} else f"{then} (now {now})"


def _start(decision: JobDecision | None, *, as_of: float) -> str:
    if decision is None:
        return NOTHING
    # A placed job starts in this cycle, so it needs no forecast.
    if decision.verdict is JobVerdict.PLACED:
        return "at once"
    if decision.verdict is not JobVerdict.WAITS:
        return NOTHING
    return start_text(
        decision.expected_start, decision.expected_start_by, now=as_of, reason=decision.reason
    )


def _why(decision: JobDecision | None) -> str:
    if decision is None:
        return ""
    reason = element("strong", decision.reason, " ") if decision.reason else ""
    remedy = f"; to start it now: {decision.remedy}" if decision.remedy else ""
    return joined(reason, detail(decision, wide=False), remedy)


def _of_queue(cluster: ClusterObjects, asked: Change | None) -> Markup:
    known = asked if isinstance(asked, MoreQuota) else None
    # Only pools with a quota are offered.
    pools = {quota.gpu_pool for queue in cluster.queues for quota in queue.spec.quotas}
    return _question(
        "queue",
        _choice("queue", _queues(cluster), chosen=known.queue if known else ""),
        _choice("pool", sorted(pools), chosen=known.pool if known else ""),
        _slider("gpus", "more GPUs", low=0, high=_gpus(cluster), value=known.gpus if known else 8),
    )


def _of_job(cluster: ClusterObjects, asked: Change | None) -> Markup:
    known = asked if isinstance(asked, OtherSize) else None
    return _question(
        "job",
        element(
            "label",
            "job ",
            element(
                "input",
                name="job",
                value=known.job if known else "",
                # The name is typed, because a select with thousands of jobs would be unusable.
                placeholder="namespace/name",
                required="",
                spellcheck="false",
            ),
        ),
        _slider("nodes", "nodes", low=1, high=_nodes(cluster), value=(known and known.nodes) or 1),
        _priority(cluster, known.priority if known else None, empty=AS_IT_IS),
    )


def _of_new(cluster: ClusterObjects, asked: Change | None) -> Markup:
    known = asked if isinstance(asked, NewJob) else None
    # Eight is the usual size of a GPU node.
    gpus = known.gpus_per_node if known else 8
    return _question(
        "new",
        _choice("queue", _queues(cluster), chosen=known.queue if known else ""),
        _slider("nodes", "nodes", low=1, high=_nodes(cluster), value=known.nodes if known else 1),
        element(
            "label",
            "GPUs per node ",
            element("input", type="number", name="gpus", min=0, max=64, value=gpus, required=""),
        ),
        _priority(cluster, known.priority if known else None, empty="the default"),
    )


def _question(ask: str, *fields: Markup) -> Markup:
    kind = element("input", type="hidden", name="ask", value=ask)
    button = element("button", "Ask")
    # GET puts the question into the address, so it can be shared.
    return element("form", kind, *fields, button, method="get", action="what-if", class_="fields")


def _slider(name: str, words: str, *, low: int, high: int, value: int) -> Markup:
    # The range must contain the current value, or the browser would change it.
    high = max(high, value)
    field = element(
        "input", type="range", name=name, min=min(low, value), max=high, step=1, value=value
    )
    shown = element("span", element("output", str(value)), f" of {high}", class_="soft")
    return element("label", f"{words} ", element("span", field, shown, class_="slider"))


def _choice(name: str, options: Iterable[str], *, chosen: str) -> Markup:
    listed = (
        element("option", each, value=each, selected="" if each == chosen else None)
        for each in options
    )
    return element("label", f"{name} ", element("select", *listed, name=name))


def _priority(cluster: ClusterObjects, chosen: str | None, *, empty: str) -> Markup:
    choice = priority_choice(cluster.priorities, chosen=chosen, empty=empty)
    return element("label", "priority ", choice)


def _queues(cluster: ClusterObjects) -> list[str]:
    return sorted(queue.metadata.name for queue in cluster.queues)


def _nodes(cluster: ClusterObjects) -> int:
    # A reader without rights on nodes still gets a slider.
    return min(len(cluster.nodes) or 64, MOST_NODES)


def _gpus(cluster: ClusterObjects) -> int:
    return min(sum(node.gpus for node in node_rows(cluster)) or 512, MOST_GPUS)


def _text(fields: Mapping[str, str], name: str) -> str:
    text = fields.get(name, "").strip()
    if not text:
        raise BadInput(f"the question lacks {name}")
    return text


def _number(fields: Mapping[str, str], name: str, *, low: int, high: int) -> int:
    try:
        number = int(_text(fields, name))
    # The form sends text. `int` rejects everything else.
    except ValueError:
        raise BadInput(f"{name}: want a whole number") from None
    if not low <= number <= high:
        raise BadInput(f"{name}: from {low} to {high}")
    return number
