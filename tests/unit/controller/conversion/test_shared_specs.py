"""Equal specs of jobs are parsed and kept once."""

from __future__ import annotations

import gc

from drumline.controller.jobs.shared_specs import SharedSpecs
from tests.unit.controller.views import job_view


def test_jobs_with_equal_specs_share_a_parsed_spec() -> None:
    specs = SharedSpecs()
    first, problem = specs.read(job_view("a", uid="1", nodes=3))
    second, _ = specs.read(job_view("b", uid="2", nodes=3))
    other, _ = specs.read(job_view("c", uid="3", nodes=4))
    assert problem is None
    assert second is first
    assert (first.nodes, other.nodes) == (3, 4)


def test_a_spec_is_kept_no_longer_than_a_job_has_it() -> None:
    specs = SharedSpecs()
    view = job_view()
    spec, _ = specs.read(view)
    assert (spec.nodes, len(specs)) == (2, 1)
    del spec
    gc.collect()
    assert len(specs) == 0


def test_what_cannot_be_read_is_said_of_each_job() -> None:
    specs = SharedSpecs()
    bad = [specs.read(job_view(name, nodes="x")) for name in ("a", "b")]
    assert [str(problem).partition(": ")[0] for _, problem in bad] == ["spec.nodes"] * 2
    assert len(specs) == 0


def test_overrides_that_were_too_long_to_keep_are_not_taken_for_none() -> None:
    specs = SharedSpecs()
    plain, _ = specs.read(job_view("a", uid="1"))
    long, _ = specs.read(job_view("b", uid="2", trainer={"overrides": {"x": "y" * 20_000}}))
    assert plain.trainer is not None
    assert plain.trainer.overrides is None
    assert long.trainer is not None
    assert long.trainer.overrides is not None
    assert long.trainer.overrides.size_bytes > 20_000
