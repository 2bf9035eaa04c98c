"""The measures in the field's order, and words for the failure modes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from drumline_contract.config import (
    MODEL_PRESETS,
    ConfigError,
    DataParallel,
    LocalSgdConfig,
    ParallelismConfig,
)
from drumline_contract.shapes.flops import weights
from drumline_planner import model_source
from drumline_planner.ladder import advice
from drumline_planner.search import search

from .clusters import goal


def test_each_measure_of_sharding_needs_less_and_the_first_that_fits_is_named() -> None:
    of = goal(8, batch=8, model=MODEL_PRESETS["llama-8b"])
    says = advice(of, None)
    sizes = [rung.size or 0.0 for rung in says.rungs[:7]]
    assert sizes == sorted(sizes, reverse=True)
    helping = next(rung.name for rung in says.rungs if rung.fits)
    assert helping in says.sentences[0]
    assert "16 bytes" in says.rule


def test_a_small_model_needs_no_measure() -> None:
    of = goal(8, batch=32)
    says = advice(of, search(of, best=1).planned[0])
    assert says.rungs[0].fits
    assert not any("too big" in sentence for sentence in says.sentences)


def test_a_batch_smaller_than_the_cluster_is_said() -> None:
    assert "The batch is too small: 4 sequences" in advice(goal(16, batch=4), None).sentences[0]


def test_a_rung_says_what_it_saves_over_the_one_above() -> None:
    of = goal(8, batch=8, model=MODEL_PRESETS["llama-8b"])
    rungs = [rung for rung in advice(of, None).rungs if rung.size is not None]
    assert rungs[0].saves is None
    for before, after in pairwise(rungs):
        assert after.saves == pytest.approx((before.size or 0.0) - (after.size or 0.0))
    names = [rung.name for rung in rungs]
    host = rungs[names.index("FSDP, optimizer on the host")]
    moments = 8 * weights(of.config.model) / 8
    assert host.saves == pytest.approx(moments, rel=0.01)


def test_a_long_run_is_said_in_days() -> None:
    of = goal(8)
    says = advice(of, search(of, best=1).planned[0], total_tokens=1e13)
    assert any(sentence.startswith("10 trillion tokens take") for sentence in says.sentences)
    assert [sequence.failure for sequence in says.sequences] == ["run takes too long"]


def test_experts_are_a_measure_where_there_are_some() -> None:
    says = advice(goal(8, batch=8, model=MODEL_PRESETS["qwen-moe"]), None)
    assert any("experts over 8" in rung.name for rung in says.rungs)


def test_sizes_fill_in_what_follows() -> None:
    model = model_source.from_sizes("layers=2,hidden=256,heads=4")
    assert (model.kv_heads, model.ffn_size) == (4, 768)
    assert model_source.from_sizes("family=gpt2,layers=2,hidden=256,heads=4").ffn_size == 1024


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("layers", "'layers' must be written as field=value"),
        ("layers=2,hiden=64,heads=4", "'hiden' is not known; did you mean hidden?"),
        ("layers=2,layers=3,hidden=64,heads=4", "layers is given twice"),
        ("hidden=64,hidden_size=32,layers=3,heads=4", "hidden_size is given twice"),
        ("layers=2,hidden=64,heads=5", "does not divide by 5 heads; use 4 or 8"),
        ("layers=2,hidden=64,heads=4,kv_heads=3", "model.kv_heads: .* use 2 or 4"),
    ],
)
def test_sizes_that_cannot_be_read_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        model_source.from_sizes(text)


@pytest.mark.parametrize(
    "parallelism",
    [
        ParallelismConfig(local_sgd=LocalSgdConfig()),
        ParallelismConfig(data_parallel=DataParallel.PARAMETER_SERVER),
    ],
    ids=["local sgd", "parameter servers"],
)
def test_a_setting_that_excludes_a_measure_is_its_reason(parallelism: ParallelismConfig) -> None:
    of = goal(8, batch=8)
    of = replace(of, config=replace(of.config, parallelism=parallelism))
    impossible = {rung.name: rung.why_not for rung in advice(of, None).rungs if rung.size is None}
    assert impossible["FSDP, optimizer on the host"].startswith("memory.offload_optimizer: ")
