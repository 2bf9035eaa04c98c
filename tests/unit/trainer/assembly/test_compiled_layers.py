"""Layers that torch's compiler has seen, on a backend that counts: kernels are `make gpu`'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from drumline_contract.config import Family, ModelConfig, Recompute, TrainerConfig
from drumline_contract.layout_validation import validated_layout
from drumline_trainer.assembly.assemble import assemble
from drumline_trainer.assembly.compiled_layers import compile_layers
from drumline_trainer.memory.recompute import recompute
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.loss import token_losses_sum
from drumline_trainer.sharding.world import World

pytestmark = pytest.mark.extended(keep=1)

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


OF_TORCH = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@OF_TORCH
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
    compile_layers(compiled, TrainerConfig(), backend=counting)
    assert dict(compiled.named_parameters()).keys() == dict(eager.named_parameters()).keys()
    pairs = list(zip(gradients(eager), gradients(compiled), strict=True))
    assert all(torch.equal(left, right) for left, right in pairs)
    assert (len(pairs), len(graphs)) == (len(list(eager.parameters())), 1)


SMALL: dict[str, Any] = {"layers": 3, "hidden_size": 32, "ffn_size": 32, "heads": 2, "kv_heads": 2}
MIXTURE = SMALL | {"experts": 4, "experts_per_token": 2, "balance_weight": 0.1}
BESIDE: dict[str, tuple[dict[str, Any], int]] = {
    "fp8": ({"precision": "bf16", "fp8": True}, 1),
    # nothing goes back through the input of the first layer
    "4 bits": ({"precision": "bf16", "lora": {"base_bits": 4}}, 2),
    "experts": ({"precision": "bf16", "model": MIXTURE}, 1),
    # what is left out in the middle of a layer ends the piece of each module that it lies in
    "experts, fp32": ({"model": MIXTURE}, 6),
    "documents": ({"data": {"sequence_length": 16, "packing": "separate"}}, 4),
    "whole documents": ({"data": {"sequence_length": 16, "packing": "whole"}}, 4),
    # conversations have whole ones where nothing else is asked for
    "documents as they come": ({"data": {"sequence_length": 16, "packing": None}}, 4),
    "offload": ({"memory": {"offload_activations": "cpu"}}, 1),
}
"""Settings, and pieces that a layer is compiled in."""


def losses_and_gradients(config: TrainerConfig, backend: Any, *, apart: bool) -> list[Tensor]:
    """Of three steps; with documents apart each has other lengths of them."""
    world = World(layout=validated_layout(config, world_size=1), rank=0, device=torch.device("cpu"))
    model = assemble(config, world)
    generator = torch.Generator().manual_seed(0)
    (stage,) = model.stages
    for held in (*stage.parameters(), *stage.buffers()):
        data = held.detach()
        _ = (
            data.normal_(std=0.1, generator=generator)
            if data.is_floating_point()
            else data.fill_(3)
        )
    if backend is not None:
        compile_layers(stage, config, backend=backend)
    made: list[Tensor] = []
    for step in range(3):
        tokens = torch.randint(0, 256, (2, 17), generator=generator)
        ids = (torch.arange(16) >= 4 + step).int().expand(2, -1)
        positions = torch.arange(16).int() - ids * (4 + step)
        given = (Documents.of(ids.numpy(), positions.numpy()),) if apart else ()
        model.begin_step(targets=32)
        loss = model.micro_batch_loss(tokens[:, :-1], tokens[:, 1:], given)
        loss.backward()
        made += [loss.detach(), *(gradient.clone() for gradient in model.gradients())]
    return made


@OF_TORCH
@pytest.mark.parametrize("name", BESIDE)
def test_a_layer_is_compiled_in_few_pieces_whatever_is_beside_it(name: str) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def counting(graph: Any, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    change, pieces = BESIDE[name]
    config = TrainerConfig.from_dict(
        {"model": SMALL, "global_batch_size": 2, "data": {"sequence_length": 16}} | change
    )
    apart = "documents" in name
    eager, compiled = (
        losses_and_gradients(config, backend, apart=apart) for backend in (None, counting)
    )
    for left, right in zip(eager, compiled, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-5, atol=1e-6)
    assert len(graphs) == pieces
