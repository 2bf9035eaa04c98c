"""A rank module whose import lasts until the test opens the gate."""

import os

with open(os.environ["GATE"], "rb", buffering=0) as gate:  # noqa: PTH123 - a FIFO, unbuffered
    gate.read(1)
