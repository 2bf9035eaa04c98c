from __future__ import annotations

import json

from drumline_trainer.collectives.measurements import Collective, Measurement
from drumline_trainer.collectives.report import as_json, table

ROWS = [
    Measurement(
        axis="tp", ranks=2, collective=collective, by=by, bytes=size, seconds=1e-4 + size / 1e9
    )
    for size in (1024, 4 * 1024**2)
    for collective, by in ((Collective.ALL_REDUCE, "torch"), (Collective.ALL_REDUCE, "ring"))
]


def test_the_table() -> None:
    assert table(ROWS, title="TP2, 2 ranks") == (
        """\
TP2, 2 ranks

tp: 2 ranks
collective      by               size       time    algorithm          bus
all_reduce      torch           1 KiB   101.0 us   10.14 MB/s   10.14 MB/s
all_reduce      torch           4 MiB    4.29 ms  976.71 MB/s  976.71 MB/s
                time = 100.0 us + size / 1.00 GB/s
all_reduce      ring            1 KiB   101.0 us   10.14 MB/s   10.14 MB/s
all_reduce      ring            4 MiB    4.29 ms  976.71 MB/s  976.71 MB/s
                time = 100.0 us + size / 1.00 GB/s

time is the median of the slowest rank's; algorithm bandwidth = size / time;
bus bandwidth = algorithm bandwidth x, for n ranks
  1 for broadcast, p2p
  2 (n - 1) / n for all_reduce
  (n - 1) / n for all_gather, reduce_scatter, all_to_all
"""
    )
    assert "there is nothing to measure" in table([], title="one rank")


def test_json_holds_every_figure_and_line() -> None:
    whole = json.loads(as_json(ROWS, layout="TP2"))
    assert whole["layout"] == "TP2"
    assert [(each["by"], each["bytes"]) for each in whole["rows"]] == [
        ("torch", 1024),
        ("ring", 1024),
        ("torch", 4194304),
        ("ring", 4194304),
    ]
    assert whole["rows"][0]["bus_bytes_per_second"] == ROWS[0].bus_bandwidth
    assert [(fit["by"], round(fit["beta_bytes_per_second"])) for fit in whole["fits"]] == [
        ("torch", 1_000_000_000),
        ("ring", 1_000_000_000),
    ]
