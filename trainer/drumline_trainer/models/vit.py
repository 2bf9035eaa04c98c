"""A vision transformer (Dosovitskiy et al. 2021): an encoder of patches that names a class.

It averages over the patches, which is as good as the paper's class token (Beyer et al. 2022), and
the number of positions stays one that divides; with `class_token` it is the paper's, as published
models are. Integer inputs are pixels of 0 to 255; floating ones are the hidden states of an
earlier pipeline stage. A stage lacks parts as in `models.decoder`.

Shapes: B batch, C channels, I side of an image, P side of a patch, S positions, D hidden, K
classes.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_trainer.models.gpt2 import GPT2Layer
from drumline_trainer.models.replaceable import LayerLoop, Positions


class PatchEmbedding(nn.Module):
    """A linear map of each patch's pixels: the paper's convolution whose stride is its width.

    Behind the class token, where there is one.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        pixels = config.channels * config.patch_size**2
        self.projection = nn.Linear(pixels, config.hidden_size)
        self.class_token = (
            nn.Parameter(torch.empty(config.hidden_size)) if config.class_token else None
        )

    def forward(self, images_BCII: Tensor) -> Tensor:
        """Embed images as [batch, patches, hidden], rows of patches from top to bottom."""
        # 0..255 becomes -1..1, which is the preprocessing of the published checkpoints with mean
        # and deviation 0.5.
        x_BCII = images_BCII.to(self.projection.weight.dtype) / 127.5 - 1
        rows_and_columns = (-1, self.patch_size)
        # [B, C, I, I] becomes [B, C, I, I/P, P], then [B, C, I/P, P, I/P, P].
        columns = cast("Tensor", x_BCII.unflatten(3, rows_and_columns))
        patches = cast("Tensor", columns.unflatten(2, rows_and_columns))
        # [B, rows, columns, C, P, P], then [B, S, C, P, P]. A patch's pixels have the order of a
        # convolution's weight.
        patches_BSCPP = patches.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        x_BSD = self.projection(patches_BSCPP.flatten(2))
        if self.class_token is None:
            return x_BSD
        # The token comes first, so position 0 is its position embedding.
        return torch.cat((self.class_token.expand(len(x_BSD), 1, -1), x_BSD), dim=1)


class ViT(nn.Module):
    """The whole encoder, or the layers of one pipeline stage."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding: nn.Module | None = PatchEmbedding(config)
        self.position_embedding: nn.Module | None = nn.Embedding(
            config.image_positions, config.hidden_size
        )
        self.positions: nn.Module = Positions()
        self.layers = nn.ModuleDict(
            {
                # The exact GELU: published vision transformers use it, GPT-2 uses the approximation
                # by tanh.
                str(index): GPT2Layer(config, causal=False, approximate="none")
                for index in range(config.layers)
            }
        )
        self.layer_loop: nn.Module = LayerLoop()
        self.norm: nn.Module | None = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.output: nn.Module | None = nn.Linear(config.hidden_size, config.classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Run the stage: images [batch, channels, height, width] in, logits [batch, classes] out.

        Other stages than the first take hidden states [batch, patches, hidden], others than the
        last return them.
        """
        # Pixels are uint8, hidden states are floating.
        x_BSD = inputs if inputs.is_floating_point() else self.embedded(inputs)
        x_BSD = self.layer_loop(self.layers.values(), x_BSD)
        if self.norm is None or self.output is None:
            return x_BSD
        x_BSD = self.norm(x_BSD)
        # The class token or the mean: [B, S, D] becomes [B, D].
        return self.output(x_BSD[:, 0] if self.config.class_token else x_BSD.mean(dim=1))

    def embedded(self, images_BCII: Tensor) -> Tensor:
        """Return the first hidden states [B, S, D] of images [B, C, I, I].

        Raises:
            TypeError: the stage has no embedding.
        """
        if self.embedding is None or self.position_embedding is None:
            raise TypeError("a stage without embedding is fed hidden states, not images")
        x_BSD = self.embedding(images_BCII)
        return x_BSD + self.position_embedding(self.positions(x_BSD))
