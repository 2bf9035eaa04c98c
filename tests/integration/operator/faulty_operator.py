"""The operator with an exception planted for jobs whose names begin with `unlucky`.

Run as a module in place of `drumline`.
"""

from __future__ import annotations

import runpy

from drumline.lifecycle.model.job import Job
from drumline.lifecycle.transitions import membership
from drumline_scheduler.admission import Admission
from drumline_scheduler.model import Admitted, Gang
from drumline_scheduler.preemption.repair import GangRepair

UNLUCKY = "/unlucky"


class PlantedError(Exception):
    """Raised for one job."""


def plant() -> None:
    """Raise where such a job is placed, repaired, or written."""
    admit, repair, admitted = Admission.admit, GangRepair.repair, membership.admitted

    def failing_admit(self: Admission, gang: Gang) -> object:
        if gang.key.endswith(f"{UNLUCKY}-start"):
            raise PlantedError("no start")
        return admit(self, gang)

    def failing_repair(self: GangRepair, held: Admitted) -> object:
        if held.gang.key.endswith(f"{UNLUCKY}-repair"):
            raise PlantedError("no repair")
        return repair(self, held)

    def failing_write(job: Job, **changes: object) -> object:
        if job.key.endswith(f"{UNLUCKY}-write"):
            raise PlantedError("no write")
        return admitted(job, **changes)  # type: ignore[arg-type]

    Admission.admit = failing_admit  # type: ignore[method-assign,assignment]
    GangRepair.repair = failing_repair  # type: ignore[method-assign,assignment]
    membership.admitted = failing_write  # type: ignore[assignment]


if __name__ == "__main__":
    plant()
    runpy.run_module("drumline", run_name="__main__", alter_sys=True)
