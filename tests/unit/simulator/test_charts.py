from __future__ import annotations

from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg

from drumline_scheduler import Policy
from drumline_simulator.engine.simulation import simulate
from drumline_simulator.results import charts
from tests.unit.simulator.clusters import PROMPT, a_cluster, a_job


def test_no_legend_covers_the_blocks_of_the_allocations() -> None:
    cluster = a_cluster(nodes=2)
    jobs = [a_job("first"), a_job("second")]  # they fill all GPUs all the time
    ran = simulate(cluster=cluster, arrivals=jobs, policy=Policy(), execution=PROMPT)
    figure = charts.gpu_allocation("drumline", ran, cluster.nodes)
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    axes: Any = figure.axes[0]
    legend = axes.get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["q"]
    assert not axes.get_window_extent().overlaps(legend.get_window_extent())
