"""The operator with another time for which it waits on taints: `python -m ... SECONDS`.

In the product it is what kube-scheduler needs to see a taint. On a machine that others use that may
take longer, and whoever is late then is not the operator.
"""

from __future__ import annotations

import runpy
import sys

from drumline_scheduler import guarded_nodes

NEVER = 600.0
"""Until a node that could not be tainted is used as any other."""

if __name__ == "__main__":
    seconds = float(sys.argv.pop())
    vars(guarded_nodes).update(SETTLE_SECONDS=seconds, GIVE_UP_SECONDS=NEVER)
    runpy.run_module("drumline", run_name="__main__")
