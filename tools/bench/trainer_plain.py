"""What our trainer is measured against: the same model and step, written with torch's own wrappers.

One decoder like `drumline_trainer.models.llama` (the same parameter names, so both can start from
the same weights), an AdamW step, clipping. No metrics, no checkpoints, no recovery, no determinism:
whatever a careful script leaves out costs it nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.adamw import adamw

from drumline_contract.config import ModelConfig, OptimizerConfig

Step = Callable[[Tensor, Tensor, float], Tensor]
"""A whole optimizer step: inputs, targets, learning rate; returns this rank's mean loss."""


class PlainAttention(nn.Module):
    """Causal, with grouped key-value heads and rotary positions."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.heads
        key_value_size = config.kv_heads * self.head_size
        self.query = nn.Linear(config.hidden_size, config.hidden_size, bias=False)
        self.key = nn.Linear(config.hidden_size, key_value_size, bias=False)
        self.value = nn.Linear(config.hidden_size, key_value_size, bias=False)
        self.output = nn.Linear(config.hidden_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        out = F.scaled_dot_product_attention(
            _turn(q, cos, sin),
            _turn(k, cos, sin),
            v,
            is_causal=True,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return self.output(out.transpose(1, 2).flatten(-2))


class PlainFeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.up = nn.Linear(config.hidden_size, config.ffn_size, bias=False)
        self.down = nn.Linear(config.ffn_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class PlainLayer(nn.Module):
    """Attention and feed-forward behind their norms."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.attention = PlainAttention(config)
        self.feed_forward_norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.feed_forward = PlainFeedForward(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


class PlainDecoder(nn.Module):
    """The whole model; rotary tables are made once."""

    def __init__(self, config: ModelConfig, *, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleDict({str(i): PlainLayer(config) for i in range(config.layers)})
        self.norm = nn.RMSNorm(config.hidden_size, eps=config.norm_epsilon)
        self.output = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        pairs = torch.arange(0, config.hidden_size // config.heads, 2, dtype=torch.float64)
        speeds = config.rope_theta ** (-pairs * config.heads / config.hidden_size)
        angles = torch.outer(torch.arange(length, dtype=torch.float64), speeds)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def plain_adamw(
    groups: Sequence[Sequence[nn.Parameter]], decays: list[bool], config: OptimizerConfig
) -> torch.optim.AdamW:
    """Fused AdamW; weight decay for some groups only."""
    return torch.optim.AdamW(
        [
            {"params": group, "weight_decay": config.weight_decay if its else 0.0}
            for group, its in zip(groups, decays, strict=True)
            if group
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
        eps=config.epsilon,
        fused=True,
    )


def _decaying(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    named = list(model.named_parameters())
    matrices = [p for name, p in named if p.dim() > 1 and "embedding" not in name]
    rest = [p for name, p in named if not (p.dim() > 1 and "embedding" not in name)]
    return matrices, rest


def sharded_step(model: PlainDecoder, config: OptimizerConfig) -> Step:
    """FSDP2: every layer a unit, and the root."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - imports by layout
    from torch.distributed.fsdp import fully_shard  # noqa: PLC0415

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return _step(model, list(_decaying(model)), [True, False], config)


def replicated_step(model: PlainDecoder, config: OptimizerConfig) -> Step:
    """DistributedDataParallel, its gradients views of its buckets; no step sends tables."""
    groups = list(_decaying(model))
    wrapped = nn.parallel.DistributedDataParallel(
        model, gradient_as_bucket_view=True, forward_sync_buffers=False
    )
    return _step(wrapped, groups, [True, False], config)


def alone_step(model: PlainDecoder, config: OptimizerConfig) -> Step:
    """One process, no wrapper."""
    return _step(model, list(_decaying(model)), [True, False], config)


def hand_step(model: PlainDecoder, config: OptimizerConfig) -> Step:
    """No wrapper and no `torch.optim.Optimizer`, which import torch's compiler: a sum by hand."""
    groups = list(zip(_decaying(model), (config.weight_decay, 0.0), strict=True))
    ranks = dist.get_world_size()
    state = {
        p: (torch.zeros_like(p), torch.zeros_like(p), torch.zeros(())) for p in model.parameters()
    }

    def step(inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        for parameter in state if ranks > 1 else ():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad.div_(ranks))
        nn.utils.clip_grad_norm_(list(state), config.max_gradient_norm)
        with torch.no_grad():
            for group, weight_decay in groups:
                adamw(
                    list[Tensor](group),
                    [p.grad for p in group if p.grad is not None],
                    [state[p][0] for p in group],
                    [state[p][1] for p in group],
                    [],
                    [state[p][2] for p in group],
                    fused=True,
                    amsgrad=False,
                    beta1=config.beta1,
                    beta2=config.beta2,
                    lr=rate,
                    weight_decay=weight_decay,
                    eps=config.epsilon,
                    maximize=False,
                )
        model.zero_grad()
        return loss.detach()

    return step


def tensor_step(model: PlainDecoder, config: OptimizerConfig) -> Step:
    """Heads, feed-forward and vocabulary cut by DTensor; the loss on logits that stay cut."""
    from torch.distributed.device_mesh import init_device_mesh  # noqa: PLC0415 - imports by layout
    from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: PLC0415
    from torch.distributed.tensor.parallel import (  # noqa: PLC0415
        ColwiseParallel,
        RowwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    layer = {
        "attention.query": ColwiseParallel(),
        "attention.key": ColwiseParallel(),
        "attention.value": ColwiseParallel(),
        "attention.output": RowwiseParallel(),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(),
    }
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "output": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    for name in model.layers:
        plan |= {f"layers.{name}.{part}": style for part, style in layer.items()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(model, mesh, plan)
    matrices, vectors = _decaying(model)
    cut = [p for p in vectors if isinstance(p, DTensor)]
    uncut = [p for p in vectors if not isinstance(p, DTensor)]
    # torch's norms and fused updates do not take both kinds at once
    return _step(model, [matrices, cut, uncut], [True, False, False], config, around=loss_parallel)


STEPS = {
    "fsdp": sharded_step,
    "ddp": replicated_step,
    "tp": tensor_step,
    "hand": hand_step,
}
"""By layout, for several ranks."""


def whole(tensor: Tensor) -> Tensor:
    """An ordinary tensor, also of a distributed one."""
    full = getattr(tensor, "full_tensor", None)
    return tensor if full is None else cast("Tensor", full())


def _step(
    model: nn.Module,
    groups: Sequence[Sequence[nn.Parameter]],
    decays: list[bool],
    config: OptimizerConfig,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Step:
    optimizer = plain_adamw(groups, decays, config)
    clipped = [[p for group in groups[:2] for p in group], *groups[2:]]

    def backward(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        loss.backward()
        return loss.detach()

    def step(inputs: Tensor, targets: Tensor, rate: float) -> Tensor:
        with around():
            loss = backward(inputs, targets)
        _clip(clipped, max_norm=config.max_gradient_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def _clip(groups: Sequence[Sequence[nn.Parameter]], *, max_norm: float) -> None:
    """By the norm over all groups; each group's tensors are of one kind."""
    if len(groups) == 1:
        nn.utils.clip_grad_norm_(groups[0], max_norm)
        return
    norms: list[Tensor] = []
    for group in groups:
        norm = nn.utils.get_total_norm([p.grad for p in group if p.grad is not None])
        norms.append(whole(norm))
    total = torch.linalg.vector_norm(torch.stack(norms))
    factor = (max_norm / (total + 1e-6)).clamp(max=1.0).item()
    for group in groups:
        gradients = [p.grad for p in group if p.grad is not None]
        torch._foreach_mul_(gradients, factor)  # pyright: ignore[reportPrivateImportUsage]
