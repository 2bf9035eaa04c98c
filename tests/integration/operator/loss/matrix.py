"""Each kind of object with each distortion that can befall it, and a seeded sample of them."""

from __future__ import annotations

from tests.integration.operator.loss.faults import ON_READS, ON_WRITES, Distortion, Fault

SEEDS = 3
READ = ("trainingjobs", "pods", "nodes", "gpupools", "trainingqueues", "priorityclasses")
WRITTEN = (
    *("trainingjobs", "pods", "secrets", "networkpolicies", "poddisruptionbudgets"),
    *("events", "leases"),
)


def kinds_of(distortion: Distortion) -> list[str]:
    """The kinds of object that it can befall."""
    read = READ if distortion in ON_READS else ()
    written = WRITTEN if distortion in ON_WRITES else ()
    return list(dict.fromkeys((*read, *written)))


def all_faults(*, seed: int) -> list[Fault]:
    return [
        Fault(plural=plural, distortion=distortion, seed=seed + number)
        for distortion in Distortion
        for plural in kinds_of(distortion)
        for number in range(SEEDS)
    ]


def sampled_faults(seed: int) -> list[Fault]:
    """Each distortion on the next of its kinds; not all of them on the same kind."""
    faults: list[Fault] = []
    for position, distortion in enumerate(Distortion):
        kinds = kinds_of(distortion)
        plural = kinds[(seed + position) % len(kinds)]
        faults.append(Fault(plural=plural, distortion=distortion, seed=seed))
    return faults
