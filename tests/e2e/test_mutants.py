"""The comparison itself is tested: a trainer with a mistake in its restore does not pass it."""

from __future__ import annotations

import pytest

from tests.e2e.rehearsals import RESOURCES, Fault, Outcome, Rehearsal, rehearse
from tests.e2e.site import Site

SHORT = {"steps": 20, "nodes": 1, "gpusPerNode": 2, "every_steps": 5, "resources": RESOURCES}
KILL = Fault(name="killed", rank=1, finished=12, phase="backward", kind="kill")
MUTANTS = ("restored_step_off_by_one", "randomness_not_restored", "cursor_skips_a_batch")


@pytest.fixture(scope="module")
def jobs(stage: Site) -> dict[str, Rehearsal]:
    """All at once: one undisturbed, one that recovers, three that recover with a mistake."""
    runs = {"undisturbed": rehearse(stage, "undisturbed", **SHORT)}
    runs["sound"] = rehearse(stage, "sound", faults=(KILL,), **SHORT)
    for mutant in MUTANTS:
        name = mutant.replace("_", "-")
        runs[mutant] = rehearse(stage, name, faults=(KILL,), mutant=mutant, **SHORT)
    for run in runs.values():
        run.finish()
        assert not run.faults or (run.folder / "struck" / KILL.name).exists()
    return runs


@pytest.fixture(scope="module")
def undisturbed(jobs: dict[str, Rehearsal]) -> Outcome:
    return jobs["undisturbed"].outcome()


def test_a_sound_recovery_passes(jobs: dict[str, Rehearsal], undisturbed: Outcome) -> None:
    assert jobs["sound"].outcome() == undisturbed


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_in_the_restore_does_not(
    jobs: dict[str, Rehearsal], undisturbed: Outcome, mutant: str
) -> None:
    with pytest.raises(AssertionError):
        assert jobs[mutant].outcome() == undisturbed
