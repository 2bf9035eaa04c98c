"""The common part of language models, and the form of a pipeline stage.

A stage is the same class with other layers and with parts set to None. Without `embedding` its
input is hidden states, without `norm` its output is. If embeddings are tied (`output` is None from
the start), the last stage keeps `embedding` as its head. Layers are in a ModuleDict, so that a
parameter's name stays when a stage drops some.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.replaceable import LayerLoop, Positions, TokenEmbedding

TIED_WEIGHT = "embedding.weight"
"""Name of the parameter that is embedding and head where embeddings are tied."""


class Decoder(nn.Module):
    """Embedding, layers, norm and head; a family says in `forward` how they follow each other.

    Args:
        config: shape of the model.
        layer: makes the layer with an index.
        norm: the last norm.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        layer: Callable[[ModelConfig, int], nn.Module],
        norm: nn.Module,
    ) -> None:
        super().__init__()
        self.config = config
        self.embedding: TokenEmbedding | None = TokenEmbedding(
            config.vocab_size, config.hidden_size
        )
        self.positions: Positions = Positions()
        # Keys are numbers of the whole model, so a stage's parameter has the same name as in the
        # checkpoint.
        self.layers = nn.ModuleDict(
            {str(index): layer(config, index) for index in range(config.layers)}
        )
        self.layer_loop: nn.Module = LayerLoop()
        self.norm: nn.Module | None = norm
        self.output: nn.Module | None = (
            None
            if config.tied_embeddings
            else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        )

    def places(self, x_BSD: Tensor, documents: Documents | None) -> Tensor:
        """Return positions for attention: [sequence], or with documents [batch, sequence]."""
        # A rank of the context axis has some positions of the sequence, and they are not 0..S-1.
        places_S = self.positions(x_BSD)
        return places_S if documents is None else documents.positions(places_S)

    def lengths(self, x_BSD: Tensor, documents: Documents | None) -> int | Tensor:
        """Return the whole sequences' length, or [B, S] that of each visible token's document."""
        # Every rank takes the length of the whole sequence, or longrope would choose factors by its
        # part.
        if documents is None:
            return self.positions.length(x_BSD)
        return documents.lengths(self.positions(x_BSD))

    def embedded(self, tokens_BS: Tensor) -> Tensor:
        """Return the first hidden states [B, S, D] of tokens [B, S].

        Raises:
            TypeError: the stage has no embedding.
        """
        if self.embedding is None:
            raise TypeError("a stage without embedding is fed hidden states, not tokens")
        # Granite scales the embeddings by a factor of its configuration, Gemma by the root of the
        # hidden size.
        x_BSD = times(self.embedding(tokens_BS), self.config.embedding_multiplier)
        if not self.config.scaled_embedding:
            return x_BSD
        # rounded as its authors do, which in bf16 is another factor
        return x_BSD * torch.tensor(self.config.hidden_size**0.5, dtype=x_BSD.dtype).item()

    def logits(self, x_BSD: Tensor) -> Tensor:
        """Score every word, [batch, sequence, vocabulary]; an earlier stage returns x_BSD.

        Raises:
            TypeError: a model with tied embeddings lacks its embedding.
        """
        # An earlier stage has no norm: its hidden states go to the next stage as they are.
        if self.norm is None:
            return x_BSD
        # the head is linear: what it takes in is smaller than what it gives
        x_BSD = times(self.norm(x_BSD), 1 / self.config.logit_divisor)
        if self.output is not None:
            return self._capped(self.output(x_BSD))
        if self.embedding is None:
            raise TypeError("the last stage of a model with tied embeddings keeps its embedding")
        return self._capped(self.embedding.logits(x_BSD))

    def _capped(self, logits_BSV: Tensor) -> Tensor:
        cap = self.config.logit_softcap
        # Gemma 2 caps logits. It happens before the loss, so the loss sees capped values as in
        # inference.
        return logits_BSV if cap is None else cap * torch.tanh(logits_BSV / cap)


def times(x: Tensor, factor: float) -> Tensor:
    """Multiply, unless the factor is 1."""
    # A product with 1 would write the whole tensor once more.
    return x if factor == 1 else x * factor
