"""Render the pages: pure functions from the cluster to markup, in which foreign text is escaped.

There are no inline scripts or styles, so the policy of `server` forbids both. Lists have a maximum
length. The command line shows all entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

import msgspec

from drumline.overview.gantt import rows_of
from drumline.overview.jobs import job_rows, lines, positions
from drumline.overview.nodes import node_rows
from drumline.overview.objects import GONE, ClusterObjects
from drumline.overview.pool_units import PoolUnits
from drumline.overview.queues import queue_rows, share_rows
from drumline.overview.rows import JobRow, NodeRow, QueueRow, QuotaRow, ShareRow, WhyCard
from drumline.overview.why import why_card
from drumline_cli.formatting import duration, gpus, gpus_of, many, percent
from drumline_cli.markup import Markup, element, joined
from drumline_cli.overview.tables import budget_text, dated, foreign_pods, starts, stop_text
from drumline_cli.report import html
from drumline_cli.report.builder import build_report
from drumline_cli.report.burn_down import burn_down
from drumline_cli.report.job_input import JobInput
from drumline_console.gantt import chart
from drumline_console.ui.action_pages import job_buttons
from drumline_console.ui.links import job_path, more_quota_path
from drumline_console.ui.parts import NOTHING, anchor, document, foot, section, table
from drumline_console.ui.rack_map import colours_of, rack_map

# Limits keep a page small even in a cluster of thousands of jobs.
MOST_RUNNING: Final = 200
MOST_WAITING: Final = 25
"""Maximum per queue."""
MOST_ENDED: Final = 30
MOST_DRAWN: Final = 60
"""Maximum number of jobs in the chart over time."""
# Largest page that is shown without sections that scroll by themselves.
_MOST_WHOLE_JOBS: Final = 30
_MOST_WHOLE_NODES: Final = 128
# Seconds before and after now that the chart covers.
_PAST: Final = 6 * 3600.0
_FUTURE: Final = 12 * 3600.0


def overview(
    cluster: ClusterObjects, *, words: str = "", archive: bool = False, account: bool = False
) -> str:
    """Render the whole cluster: map, queues, running jobs, shares, ended jobs.

    On a large page each section scrolls by itself, so the page is at most two screens high.

    Args:
        cluster: content of the page.
        words: only jobs whose names, queue, user, phase or reason contain all of these words.
        archive: whether the archive has a page.
        account: whether there is a page to log in and out.
    """
    # Phase 1: make the rows from one set of objects, so that all figures agree.
    now = cluster.as_of
    places = positions(lines(cluster.jobs, cluster.priorities))
    rows = job_rows(cluster.jobs, now=now, places=places, units=PoolUnits(cluster.pools))
    # A running job has a pool and no end. A pending job has a position.
    running = [row for row in rows if row.pool and row.finished_at is None]
    waiting = sum(row.position is not None for row in rows)
    # Phase 2: the figures in the head describe the cluster, not the filter.
    nodes = node_rows(cluster)
    summary = f"{_held(running, nodes)}, {many(waiting, 'job')} pending"
    promised = (job for node in nodes for job in node.promised_to)
    # Colours are assigned before the filter, so a job keeps its colour in all views.
    colours = colours_of(chain((f"{row.namespace}/{row.name}" for row in running), promised))
    queues = [_matching(row, words) for row in queue_rows(cluster)]
    shown = [row for row in rows if _matches(row, words)]
    running = [row for row in running if _matches(row, words)]
    ended = [row for row in shown if row.finished_at is not None]
    # Phase 3: apply the filter. The head then also names the number of matches.
    if words:
        summary = f"{len(shown)} of {many(len(rows), 'job')} match; {summary}"
        queues = [row for row in queues if row.waiting or words.lower() in row.queue.lower()]
    # Phase 4: render links and sections. A section without content disappears.
    links = {"What if\N{HORIZONTAL ELLIPSIS}": "what-if"} | (
        {"Account": "login"} if account else {}
    )
    buttons = (element("a", words, href=to, class_="button") for words, to in links.items())
    head = element("header", element("h1", "Drumline"), element("p", summary, class_="lead"))
    sections = {
        "Nodes": rack_map(nodes, colours) if nodes else "",
        "Queues": joined(*(_queue(row, now=now) for row in queues)),
        "Over time": _over_time(shown, now=now),
        "Running": _running(running, colours, now=now),
        "Shares": _shares(share_rows(cluster), now=now),
        "Ended": _ended(ended, now=now, archive=archive),
    }
    sections = {title: content for title, content in sections.items() if content}
    # Phase 5: let sections scroll only where the page would be long. A small cluster is seen whole.
    long = len(shown) > _MOST_WHOLE_JOBS or len(nodes) > _MOST_WHOLE_NODES
    parts = (
        element("div", head, element("div", *buttons, class_="actions"), class_="top"),
        _pages(sections, words=words),
        *(section(title, content, pane=long) for title, content in sections.items()),
        # Remarks explain missing rights, so they appear even on an empty page.
        foot(cluster.remarks, as_of=now),
    )
    return document("Drumline", joined(*parts), up="", look="overview")


def _held(running: Sequence[JobRow], nodes: Sequence[NodeRow]) -> str:
    """Return how many GPUs jobs and foreign pods hold."""
    held = gpus(sum(row.whole_gpus for row in running))
    # Nodes count parts in pools with partitions. People think in whole GPUs.
    foreign = sum(node.foreign_gpus / node.parts_per_gpu for node in nodes)
    more = f", {gpus(foreign)} by foreign pods" if foreign else ""
    return f"{held} held by {many(len(running), 'job')}{more}"


def _pages(titles: Iterable[str], *, words: str) -> Markup:
    """Render links to the sections, and the filter."""
    links = (element("a", title, href=f"#{anchor(title)}") for title in titles)
    field = element(
        "input",
        name="q",
        type="search",
        value=words,
        placeholder="filter jobs",
        aria_label="Filter jobs by name, queue, user, phase or reason",
        spellcheck="false",
    )
    # The form uses GET, so users can bookmark a filter.
    form = element("form", field, element("button", "Filter"), method="get", action="./")
    return element("nav", *links, form, class_="pages", aria_label="Sections")


def _matches(row: JobRow, words: str) -> bool:
    """Return whether a job has all words of a filter in its names, queue, phase or reason."""
    # Words can match across fields, such as a user and a reason.
    texts = (row.namespace, row.name, row.queue, row.user, row.pool, row.phase, row.reason)
    text = "/".join(texts).lower()
    return all(word in text for word in words.lower().split())


def _matching(row: QueueRow, words: str) -> QueueRow:
    """Return a queue with the jobs that match a filter. Their places in line stay."""
    if not words:
        return row
    waiting = tuple(job for job in row.waiting if _matches(job, words))
    # Positions stay those of the whole line. A filter must not suggest a shorter wait.
    return msgspec.structs.replace(row, waiting=waiting)


def job(job_input: JobInput, cluster: ClusterObjects) -> str:
    """Render one job: why it waits, its buttons, and its report."""
    key = f"{job_input.namespace}/{job_input.name}"
    # A job can be absent from the list when the reader may not list its namespace.
    known = next((each for each in cluster.jobs if each.key == key), None)
    card = None if known is None else why_card(cluster, known)
    report = build_report(job_input)
    back = element("nav", element("a", "\N{LEFTWARDS ARROW} all jobs", href="../../"))
    # Only a pending job has a reason to wait. Others show the report alone.
    waits = card is not None and card.job.position is not None
    why = _why(card, now=cluster.as_of) if card is not None and waits else ""
    above = element("div", back, job_buttons(job_input), class_="top")
    return document(key, html.sections(report, above=above, second=why), up="../../")


def refused(reason: str, *, title: str, up: str) -> str:
    """Render a sentence about a request that failed.

    Args:
        reason: the sentence.
        title: title of the page.
        up: path to the overview.
    """
    parts = (
        element("nav", element("a", "\N{LEFTWARDS ARROW} all jobs", href=up or "./")),
        # `alert` makes screen readers announce the failure.
        element("h1", title),
        element("p", reason, class_="lead", role="alert"),
    )
    # No script: a page about a failure must not reload itself.
    return document("Drumline", joined(*parts), up=up, script=None)


def _queue(row: QueueRow, *, now: float) -> Markup:
    # Text above the table: quotas, budget and stopPolicy, each on a line.
    lines = [_quota(each) for each in row.quotas]
    lines += [f"The queue {row.absent}."] if row.absent else []
    lines += [text for text in (budget_text(row.budget), stop_text(row)) if text]
    listed = element("ul", *(element("li", line) for line in lines), class_="quotas")
    quotas = joined(listed, burn_down(row.queue, row.budget) if row.budget else "")
    # The link asks about the first pool only. One question per queue keeps the head short.
    more = [
        element("a", "what if it had more GPUs?", href=more_quota_path(row.queue, quota.pool))
        for quota in row.quotas[:1]
        if row.waiting
    ]
    running = element("small", f"{many(row.admitted_jobs, 'job')} running")
    head = element("h3", row.queue, running, *(element("small", link) for link in more))
    workloads = _workloads(row, now=now)
    # A queue without pending jobs needs no table.
    if not row.waiting:
        return joined(head, quotas, workloads)
    cells = (
        (
            str(each.position),
            _link(each),
            gpus_of(each.gpus, each.partition),
            NOTHING if each.waits_since is None else duration(now - each.waits_since),
            starts(each, now=now),
            joined(element("strong", each.reason or NOTHING), " ", dated(each, now=now)),
        )
        for each in row.waiting[:MOST_WAITING]
    )
    # The command shows all jobs, so the page names it instead of a second page.
    left = len(row.waiting) - MOST_WAITING
    more = element("p", f"{many(left, 'job')} more: drumline queue {row.queue}", class_="soft")
    heads = ("#", "job", "GPUs", "waits", "starts", "why")
    line = table(f"Pending jobs of queue {row.queue}", heads, cells)
    return joined(head, quotas, line, more if left > 0 else "", workloads)


def _workloads(row: QueueRow, *, now: float) -> Markup:
    """Render the pending workloads of the queue that are not jobs, in one line."""
    if not row.workloads:
        return joined()
    cells = (
        (
            str(each.position or NOTHING),
            each.workload,
            str(each.gpus),
            NOTHING if each.queued_at is None else duration(now - each.queued_at),
            starts(each, now=now),
            joined(element("strong", each.reason), " ", each.message),
        )
        for each in row.waiting_workloads
    )
    title = f"{many(row.workloads, 'other workload')} pending in queue {row.queue}"
    return table(title, ("#", "workload", "GPUs", "waits", "starts", "why"), cells)


def _quota(quota: QuotaRow) -> Markup:
    """Render a bar of the usage, scaled to the larger of quota and usage."""
    # One is the minimum, because the SVG is scaled by this number.
    whole = max(quota.nominal_gpus, quota.used_gpus, 1)
    own = min(quota.used_gpus, quota.nominal_gpus) / whole * 100
    # Usage above the quota is borrowed, and it gets a different colour.
    beyond = max(0, quota.used_gpus - quota.nominal_gpus) / whole * 100
    foreign = f", {quota.foreign_gpus} by foreign pods" if quota.foreign_gpus else ""
    nominal = "an unknown quota" if quota.absent else many(quota.nominal_gpus, "GPU")
    gone = f"; the pool {GONE}" if quota.is_pool_gone else ""
    text = f"{quota.pool}: {quota.used_gpus} of {nominal} held{foreign}{gone}"
    bar = element(
        "svg",
        element("rect", width=own, height=1),
        element("rect", x=own, width=beyond, height=1, class_="beyond"),
        class_="progress",
        viewBox="0 0 100 1",
        preserveAspectRatio="none",
        role="img",
        aria_label=text,
    )
    return joined(text, bar)


def _over_time(jobs: Sequence[JobRow], *, now: float) -> Markup:
    since, until = now - _PAST, now + _FUTURE
    # Jobs without a bar in the period are left out, so an old cluster stays readable.
    rows = rows_of(jobs, now=now, since=since, until=until)
    if not rows:
        return Markup("")
    left = len(rows) - MOST_DRAWN
    more = element("p", f"{many(left, 'job')} more: drumline gantt -A", class_="soft")
    drawn = chart.chart(rows[:MOST_DRAWN], now=now, since=since, until=until)
    return joined(drawn, more if left > 0 else "")


def _running(rows: Sequence[JobRow], colours: Mapping[str, int], *, now: float) -> Markup:
    if not rows:
        return Markup("")
    cells = (
        (
            _link(row, colours=colours),
            row.queue,
            row.phase,
            gpus_of(row.gpus, row.partition),
            NOTHING if row.step is None else f"{row.step}/{row.total_steps or '?'}",
            row.loss or NOTHING,
            NOTHING if row.expected_end is None else f"in {duration(row.expected_end - now)}",
        )
        for row in rows[:MOST_RUNNING]
    )
    left = len(rows) - MOST_RUNNING
    more = element("p", f"{many(left, 'job')} more: drumline list -A", class_="soft")
    heads = ("job", "queue", "phase", "GPUs", "step", "loss", "ends")
    return joined(table("Running", heads, cells), more if left > 0 else "")


def _shares(rows: Sequence[ShareRow], *, now: float) -> Markup:
    # One queue has nobody to share with.
    if len(rows) < 2:
        return Markup("")
    cells = (
        (
            row.queue,
            row.cohort,
            f"the queue {row.absent}" if row.absent else percent(row.due),
            NOTHING if row.had is None else percent(row.had),
            NOTHING if row.owed is None else f"{row.owed * 100:+.1f} %",
            f"{row.next_job}, {starts(row, now=now)}" if row.next_job else "nobody waits",
        )
        for row in rows
    )
    heads = ("queue", "cohort", "due", "had", "owed", "next")
    return table("Shares", heads, cells)


def _ended(rows: Sequence[JobRow], *, now: float, archive: bool) -> Markup:
    # The archive link stays even if no ended job is in the cluster.
    if not rows and not archive:
        return Markup("")
    cells = (
        (_link(row), row.phase, row.reason, f"{duration(now - (row.finished_at or now))} ago")
        for row in rows[:MOST_ENDED]
    )
    ended = table("Ended", ("job", "phase", "reason", "when"), cells) if rows else ""
    older = element("p", element("a", "Include deleted jobs", href="history"))
    return joined(ended, older if archive else "")


def _why(card: WhyCard, *, now: float) -> Markup:
    row = card.job
    facts = [
        ("Position", f"{row.position} of {card.waiting_jobs} in queue {row.queue}"),
        ("Starts", starts(row, now=now)),
        ("Requested before it", gpus(card.gpus_ahead)),
    ]
    pairs = (element("div", element("dt", name), element("dd", value)) for name, value in facts)
    before = (
        (
            str(each.position),
            _link(each, up="../../"),
            gpus_of(each.gpus, each.partition),
            starts(each, now=now),
        )
        # Generators suffice: the table reads its cells once.
        for each in card.ahead
    )
    holders = (
        (
            # Only jobs have pages. Other holders have a third part in their name.
            each.job
            if each.job.count("/") > 1
            else element("a", each.job, href=f"../../{job_path(each.job)}"),
            gpus_of(each.gpus, each.partition),
            # A holder without a runtime limit has no forecast of its end.
            "nobody knows"
            if each.expected_end is None
            else f"in {duration(each.expected_end - now)}",
        )
        for each in card.holders
    )
    foreign = tuple(foreign_pods(card))
    tables = chain(
        [table("Before it", ("#", "before it", "GPUs", "starts"), before)] if card.ahead else [],
        [table("Holders", ("holders of GPUs it can get", "GPUs", "ends"), holders)]
        if card.holders
        else [],
        [table("Foreign pods", ("foreign pods with GPUs it can get",), zip(foreign, strict=True))]
        if foreign
        else [],
    )
    return section("Why it waits", element("dl", *pairs, class_="tiles"), *tables)


def _link(row: JobRow, *, up: str = "", colours: Mapping[str, int] | None = None) -> Markup:
    key = f"{row.namespace}/{row.name}"
    colour = (colours or {}).get(key)
    mark = "" if colour is None else element("span", class_=f"dot c{colour}")
    return element("a", mark, key, href=f"{up}{job_path(key)}")
