"""Layers that torch's compiler has seen, on a backend that counts: kernels are `make gpu`'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline_trainer.assembly.compiled_layers import compile_layers
from drumline_trainer.config import Family, ModelConfig, Recompute
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.loss import token_losses_sum

SHAPE: dict[str, Any] = {"layers": 4, "hidden_size": 32, "ffn_size": 48, "heads": 4, "kv_heads": 4}
MODELS = {
    "llama": ModelConfig(**SHAPE),
    "gpt2": ModelConfig(**SHAPE, family=Family.GPT2),
}


def a_model(config: ModelConfig) -> nn.Module:
    torch.manual_seed(0)
    model = build_on_meta(config).to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.05)
    return model


def gradients(model: nn.Module) -> list[Tensor]:
    torch.manual_seed(1)
    tokens = torch.randint(0, 256, (2, 17))
    token_losses_sum(model(tokens[:, :-1]), tokens[:, 1:]).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.parametrize("mode", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("name", MODELS)
def test_all_layers_run_what_the_compiler_made_of_one(name: str, mode: Recompute) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def counting(graph: Any, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    eager, compiled = a_model(MODELS[name]), a_model(MODELS[name])
    for model in (eager, compiled):
        recompute(model, mode=mode, every=None)
    compile_layers(compiled, backend=counting)
    assert dict(compiled.named_parameters()).keys() == dict(eager.named_parameters()).keys()
    pairs = list(zip(gradients(eager), gradients(compiled), strict=True))
    assert all(torch.equal(left, right) for left, right in pairs)
    assert (len(pairs), len(graphs)) == (len(list(eager.parameters())), 1)
