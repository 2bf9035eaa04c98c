"""Run a simulation on files: read them, show the progress, write the results."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from drumline_cli.errors import BadInput, install_extra
from drumline_cli.manifests import read_text
from drumline_cli.markup import Markup, element, joined
from drumline_simulator.comparison import CONFIGURED, ComparedPolicy, compared_policies
from drumline_simulator.conditions.node_faults import draw_node_faults
from drumline_simulator.engine.forecast_recorder import ForecastRecorder
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.input import cluster_file, synthetic, trace
from drumline_simulator.input.cluster_file import Setup
from drumline_simulator.input.conversion import to_arrivals
from drumline_simulator.input.errors import InvalidFileError
from drumline_simulator.input.formats import Format, read_as
from drumline_simulator.input.trace import TraceJob
from drumline_simulator.results.outcome import Outcome
from drumline_simulator.results.statistics import queue_shares, summary
from drumline_simulator.simulate.progress_bar import ProgressBar
from drumline_simulator.simulate.text import table
from drumline_simulator.workload import Arrival

# matplotlib is optional (the simulator extra): only types are named here.
if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MADE_UP_JOBS = 2000
# A trace may end with a queue of weeks. Failures must not stop before its jobs do.
_DRAIN_SECONDS = 30 * 86_400.0
"""Seconds for which failures are drawn, after twice the time of the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """Options of the command."""

    cluster: str
    trace: str | None
    format: str
    jobs: int | None
    seed: int
    load: float
    alone: bool
    starts_every_hours: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """One policy and the outcome of its simulation."""

    name: str
    setup: Setup
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Results of all policies on one trace. The cluster's own policy is the first."""

    title: str
    runs: tuple[PolicyRun, ...]
    trace_csv: str


def run_study(request: SimulationRequest, *, screen: TextIO | None) -> Study:
    """Simulate the trace under each policy.

    Args:
        request: options of the command.
        screen: terminal for the progress bar. None: no progress bar.

    Raises:
        BadInput: a file cannot be read or is invalid.
    """
    # Phase 1: read both files, before any simulation takes time.
    try:
        setup = cluster_file.parse(_text(request.cluster), file=request.cluster)
        jobs = _jobs(request, setup=setup)
        coming = to_arrivals(
            jobs,
            cluster=setup.cluster,
            default_queue=setup.default_queue,
            file=request.trace or "the synthetic trace",
        )
    except InvalidFileError as error:
        raise BadInput(str(error)) from None
    # Trace rows without GPUs are dropped on conversion, so a valid file may leave nothing.
    if not coming:
        raise BadInput(f"{request.trace}: the trace has no jobs that use a GPU")
    # Phase 2: simulate. The configured policy is the first, and all others get the same arrivals.
    chosen = compared_policies(setup)[:1] if request.alone else compared_policies(setup)
    runs: list[PolicyRun] = []
    for compared in chosen:
        with ProgressBar(title=compared.name, screen=screen) as bar:
            runs.append(_run(compared, arrivals=coming, bar=bar, request=request))
    name = (
        Path(request.trace).name if request.trace else (f"a synthetic trace (seed {request.seed})")
    )
    title = f"{len(coming)} jobs of {name} on {setup.cluster.gpus} GPUs"
    # The written trace is the normalised one, so a second run needs no format option.
    return Study(title=title, runs=tuple(runs), trace_csv=trace.write(jobs))


def as_table(study: Study) -> str:
    """Return the comparison for a terminal."""
    return table(study.title, [(run.name, summary(run.outcome)) for run in study.runs])


def as_json(study: Study) -> str:
    """Return the comparison for a program."""
    policies = {run.name: asdict(summary(run.outcome)) for run in study.runs}
    return json.dumps({"title": study.title, "policies": policies}, indent=2) + "\n"


def save(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        BadInput: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def _run(
    compared: ComparedPolicy,
    *,
    arrivals: Sequence[Arrival],
    bar: ProgressBar,
    request: SimulationRequest,
) -> PolicyRun:
    setup, recorder, every_hours = compared.setup, None, request.starts_every_hours
    # Failures are drawn per run, with one seed: every policy meets the same ones.
    last = max(job.gang.queued_at for job in arrivals)
    drawn = draw_node_faults(
        setup.cluster,
        failures=setup.failures,
        spot=setup.spot,
        seconds=2 * last + _DRAIN_SECONDS,
        seed=request.seed,
    )
    # Only the configured policy records expected starts: each recording costs a forecast.
    if every_hours is not None and compared.name == CONFIGURED:
        recorder = ForecastRecorder(every_seconds=3600 * every_hours)
    outcome = simulate(
        cluster=setup.cluster,
        arrivals=arrivals,
        policy=setup.policy,
        execution=setup.execution,
        outages=(*setup.outages, *drawn.outages),
        faults=drawn.faults,
        seed=request.seed,
        recorder=recorder,
        watch=bar,
    )
    return PolicyRun(name=compared.name, setup=setup, outcome=outcome)


def _jobs(request: SimulationRequest, *, setup: Setup) -> list[TraceJob]:
    if request.trace is None:
        return synthetic.trace(
            seed=request.seed,
            jobs=request.jobs or _MADE_UP_JOBS,
            gpus=setup.cluster.gpus,
            # Queues without quota are inner nodes of the tree, so no job is submitted to them.
            queues=[queue.name for queue in setup.cluster.queues if any(queue.nominal.values())],
            load=request.load,
        )
    lines = _text(request.trace).splitlines(keepends=True)
    # A slice, because rows are streamed: `--jobs 100` reads only the head of a large trace.
    return list(islice(read_as(Format(request.format), lines, file=request.trace), request.jobs))


def _text(name: str) -> str:
    text, _ = read_text(name)
    return text


def draw(study: Study, *, folder: Path) -> None:
    """Write every picture as PNG, and one page with all of them.

    Raises:
        BadInput: matplotlib is missing, or the folder cannot be written.
    """
    shown = write_pictures(folder, lambda: _pictures(study))
    save(folder / "index.html", page(study.title, table=as_table(study), pictures=shown))


def write_pictures(
    folder: Path, draw_all: Callable[[], Mapping[str, Figure]]
) -> list[tuple[str, str]]:
    """Write pictures as PNG, and return their titles and SVG.

    Raises:
        BadInput: matplotlib is missing, or the folder cannot be written.
    """
    # matplotlib is imported by the callback, so only pictures need it.
    try:
        drawn = draw_all()
    except ImportError:
        raise BadInput(f"--pictures needs matplotlib. {install_extra('simulator')}") from None
    from drumline_simulator.results import charts  # noqa: PLC0415 - optional: the simulator extra

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in drawn.items():
            (folder / f"{name}.png").write_bytes(charts.png(figure))
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from None
    return [(figure.axes[0].get_title(loc="left"), charts.svg(figure)) for figure in drawn.values()]


def _pictures(study: Study) -> dict[str, Figure]:
    """Draw the pictures.

    Raises:
        ImportError: matplotlib is not installed.
    """
    from drumline_simulator.results import charts  # noqa: PLC0415 - optional: the simulator extra

    outcomes = [(run.name, run.outcome) for run in study.runs]
    shares = [(run.name, queue_shares(run.outcome, run.setup.cluster.queues)) for run in study.runs]
    drawn = {
        "utilisation": charts.utilisation(outcomes),
        "waits": charts.waits(outcomes),
        "largest": charts.largest(outcomes),
        "fairness": charts.fairness(shares),
    }
    # A chart without data would only show empty axes.
    if any(outcome.evictions for _, outcome in outcomes):
        drawn["preemptions"] = charts.preemptions(outcomes)
    for number, run in enumerate(study.runs):
        figure = charts.gpu_allocation(run.name, run.outcome, run.setup.cluster.nodes)
        drawn[f"places-{number + 1}"] = figure
    if study.runs[0].outcome.forecasts:
        drawn["starts"] = charts.start_forecasts(study.runs[0].outcome)
    return drawn


_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_STYLE: Final = Markup(
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:0;background:Canvas;color:CanvasText}"
    "main{max-width:62rem;margin:0 auto;padding:1.5rem}"
    "h1{font-size:1.35rem}"
    "pre{overflow-x:auto;font-size:.82rem;line-height:1.6;padding:.8rem 1rem;border-radius:8px;"
    "background:color-mix(in srgb,CanvasText 6%,Canvas)}"
    "figure{margin:1.2rem 0;padding:.6rem;background:#fff;border-radius:8px;"
    "box-shadow:0 0 0 1px #8884}"
    "img{display:block;width:100%;height:auto}"
)


def page(title: str, *, table: str, pictures: Sequence[tuple[str, str]]) -> str:
    """Return the whole document.

    Args:
        title: title of the page.
        table: comparison as text.
        pictures: title and SVG of each picture.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("title", title),
        element("style", _STYLE),
    )
    shown = joined(*(_picture(alt, svg) for alt, svg in pictures))
    body = element("main", element("h1", title), element("pre", table), shown)
    return f"<!doctype html>\n{element('html', head, element('body', body), lang='en')}\n"


def _picture(alt: str, svg: str) -> Markup:
    source = f"data:image/svg+xml;base64,{b64encode(svg.encode()).decode()}"
    return element("figure", element("img", alt=alt, src=source))
