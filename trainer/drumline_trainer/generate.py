"""`generate`: what a checkpoint's model answers, for a look at what it has learned.

One process and the whole model; every token costs a pass over all before it, as nothing is cached.
To serve a model, export it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from drumline_contract.config import ConfigError, Family, Precision, TrainerConfig
from drumline_trainer.checkpoint.storage import StepFiles
from drumline_trainer.data.codec import Codec
from drumline_trainer.export import whole_weights
from drumline_trainer.models.build import build_on_meta
from drumline_trainer.parallelism.data_parallel.precision import to_compute_type
from drumline_trainer.sharding.slices import named_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Settings of the choice of tokens."""

    tokens: int = 128
    """Maximum number of tokens."""
    temperature: float = 0.0
    """0: the likeliest one always."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Validate. Raises ConfigError."""
        if self.tokens < 1:
            raise ConfigError(f"--tokens: must be at least 1, not {self.tokens}")
        if self.temperature < 0:
            raise ConfigError(f"--temperature: must not be negative, not {self.temperature}")


def answer(
    files: StepFiles, config: TrainerConfig, prompt: str, *, codec: Codec, sampling: Sampling
) -> str:
    """Return the model's continuation of a prompt.

    Args:
        files: files of a committed checkpoint.
        config: configuration of the run that saved it.
        prompt: text.
        codec: converts between text and tokens.
        sampling: settings of the choice of tokens.

    Raises:
        CorruptCheckpointError: it does not verify.
        ConfigError: its weights are of another model than `config`'s, or it is not a language
            model.
    """
    # Phase 1: models that have no text to continue.
    if config.model.family is Family.TRANSFORMERS:
        raise ConfigError(
            "model.family: generate knows no modules of transformers; export the checkpoint, and"
            " generate with that library"
        )
    if config.model.family is Family.VIT:
        raise ConfigError("generate: vit answers no text")
    # Phase 2: the model. One device holds it, in bf16 on a GPU unless the run computes in fp32.
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    low = config.precision is not Precision.FP32 and device.type == "cuda"
    model = build_on_meta(config.model)
    # fp16 runs are generated in bf16: their weights are fp32 in the checkpoint.
    to_compute_type(model, Precision.BF16 if low else Precision.FP32)
    model = model.to_empty(device=device).eval()
    # Weights are copied one by one, so host memory holds one weight beside the model.
    with torch.no_grad(), whole_weights(files, config) as weights:
        for name, tensor in named_weights(model):
            tensor.copy_(weights[name])
    # Phase 3: tokens.
    tokens = codec.encode(prompt)
    if not tokens:
        raise ConfigError("generate: the prompt is empty")
    # GPT-2 has a table of positions and cannot look further back. Rotary positions have no such
    # end.
    longest = config.model.max_positions if config.model.family is Family.GPT2 else None
    return codec.decode(
        list(_continued(model, tokens, codec=codec, sampling=sampling, longest=longest))
    )


@torch.no_grad()
def _continued(
    model: nn.Module, tokens: list[int], *, codec: Codec, sampling: Sampling, longest: int | None
) -> Iterator[int]:
    device = next(model.parameters()).device
    # A generator of its own: the answer depends on the seed alone.
    random = torch.Generator(device=device).manual_seed(sampling.seed)
    seen = list(tokens)
    for _ in range(sampling.tokens):
        window = seen if longest is None else seen[-longest:]
        # [1, S] in, [1, S, V] out. Only the last position predicts the next token.
        logits_V: Tensor = model(torch.tensor([window], device=device))[0, -1].float()
        token = _chosen(logits_V, sampling, random)
        if token in codec.stops:
            return
        seen.append(token)
        yield token


def _chosen(logits_V: Tensor, sampling: Sampling, random: torch.Generator) -> int:
    if sampling.temperature == 0:
        # argmax, and not a sample at a tiny temperature, which would overflow.
        return int(logits_V.argmax())
    shares_V = (logits_V / sampling.temperature).softmax(0)
    return int(torch.multinomial(shares_V, 1, generator=random))
