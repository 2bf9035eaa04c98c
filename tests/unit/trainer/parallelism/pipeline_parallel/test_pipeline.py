"""A model is cut into stages that keep its names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage

from drumline_contract.config import ConfigError, Family, ModelConfig, Schedule
from drumline_contract.layout import Layout
from drumline_contract.shapes.partition import Partition
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.parallelism.pipeline_parallel.pipeline import build_schedule, stage_modules

UNEVEN: Partition = (range(2), range(2, 3), range(3, 4), range(4, 6))
V_SHAPE = Layout(pipeline=2, schedule=Schedule.ZBV, stages_per_rank=2)
LOOPED = Layout(pipeline=2, schedule=Schedule.INTERLEAVED, stages_per_rank=2)


def model(*, tied: bool) -> nn.Module:
    return build_on_meta(ModelConfig(layers=6, hidden_size=8, ffn_size=8, tied_embeddings=tied))


def parts(stage: nn.Module) -> set[str]:
    """The layers, and what is beside them."""
    names = [name.split(".") for name, _ in stage.named_parameters()]
    return {name[1] if name[0] == "layers" else name[0] for name in names}


def every_stage(*, layout: Layout, tied: bool) -> list[set[str]]:
    """By the places of the pipeline."""
    return [
        parts(stage)
        for index in range(layout.pipeline)
        for stage in stage_modules(model(tied=tied), layout=layout, index=index, partition=UNEVEN)
    ]


def test_the_ends_have_what_comes_before_and_after_the_layers() -> None:
    looped = [{"embedding", "0", "1"}, {"3"}, {"2"}, {"4", "5", "norm", "output"}]
    assert every_stage(layout=LOOPED, tied=False) == looped


def test_a_v_brings_both_ends_to_the_first_rank() -> None:
    v_shape = [{"embedding", "0", "1"}, {"4", "5", "norm", "output"}, {"2"}, {"3"}]
    assert every_stage(layout=V_SHAPE, tied=False) == v_shape


def test_learned_positions_are_the_first_stages() -> None:
    config = ModelConfig(family=Family.GPT2, layers=6, hidden_size=8, ffn_size=8, kv_heads=4)
    stages = [
        parts(stage)
        for index in range(2)
        for stage in stage_modules(
            build_on_meta(config), layout=LOOPED, index=index, partition=UNEVEN
        )
    ]
    assert stages[0] == {"embedding", "position_embedding", "0", "1"}
    assert stages[3] == {"4", "5", "norm", "embedding"}


def test_a_tied_embedding_is_the_head_of_the_last_stage() -> None:
    tied = [{"embedding", "0", "1"}, {"3"}, {"2"}, {"4", "5", "norm", "embedding"}]
    assert every_stage(layout=LOOPED, tied=True) == tied


@pytest.mark.parametrize("family", [Family.LLAMA, Family.GPT2, Family.VIT])
def test_parameters_keep_their_names_and_the_model_its_parts(family: Family) -> None:
    whole = build_on_meta(
        ModelConfig(
            family=family, layers=6, hidden_size=8, ffn_size=8, kv_heads=4, tied_embeddings=False
        )
    )
    names = [name for name, _ in whole.named_parameters()]
    stages = [
        stage
        for index in range(2)
        for stage in stage_modules(whole, layout=V_SHAPE, index=index, partition=UNEVEN)
    ]
    assert sorted(n for stage in stages for n, _ in stage.named_parameters()) == sorted(names)
    assert [name for name, _ in whole.named_parameters()] == names


def test_stages_one_after_the_other_are_the_model() -> None:
    torch.manual_seed(0)
    whole = model(tied=True).to_empty(device="cpu")
    for parameter in whole.parameters():
        nn.init.normal_(parameter, std=0.1)
    tokens = torch.arange(10)[None]
    hidden = tokens
    place = {stage: index for index in range(2) for stage in V_SHAPE.stages_of(index)}
    for number in range(4):
        index = place[number]
        own = stage_modules(whole, layout=V_SHAPE, index=index, partition=UNEVEN)
        hidden = own[V_SHAPE.stages_of(index).index(number)](hidden)
    assert torch.equal(hidden, whole(tokens))


def test_a_schedule_that_torch_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pipelining, "ScheduleDualPipeV")
    stage = cast("PipelineStage", SimpleNamespace())
    with pytest.raises(ConfigError, match="has no dualpipev; use 1f1b"):
        build_schedule(Schedule.DUAL_PIPE_V, [stage], micro_batches=4, loss=None)
