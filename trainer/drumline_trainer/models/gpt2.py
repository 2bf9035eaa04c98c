"""GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases, GELU, tied embeddings.

Its layer without the causal mask is also that of a vision transformer (`models.vit`). See
`models.llama` for how parallelism is applied from outside.

Shapes: B batch, S sequence, D hidden, V vocabulary, H heads, G key-value heads, E size of one head.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from drumline_contract.config import ModelConfig
from drumline_trainer.models.decoder import Decoder
from drumline_trainer.models.documents import Documents
from drumline_trainer.models.feed_forward import Perceptron
from drumline_trainer.models.replaceable import CoreAttention


class GPT2Attention(nn.Module):
    """Self-attention whose four projections have biases."""

    def __init__(self, config: ModelConfig, *, causal: bool) -> None:
        super().__init__()
        self.head_size = config.features_per_head
        query_size = config.heads * self.head_size
        key_value_size = config.kv_heads * self.head_size
        self.query = nn.Linear(config.hidden_size, query_size)
        self.key = nn.Linear(config.hidden_size, key_value_size)
        self.value = nn.Linear(config.hidden_size, key_value_size)
        self.output = nn.Linear(query_size, config.hidden_size)
        self.core_attention = CoreAttention(causal=causal)

    def forward(self, x_BSD: Tensor, documents: Documents | None = None) -> Tensor:
        """Mix values over the positions that may be seen."""
        # [B, S, D] becomes [B, H, S, E] for each projection.
        q_BHSE, k_BGSE, v_BGSE = (
            projection(x_BSD).unflatten(-1, (-1, self.head_size)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        out_BHSE = self.core_attention(q_BHSE, k_BGSE, v_BGSE, documents)
        return self.output(out_BHSE.transpose(1, 2).flatten(-2))


class GPT2Layer(nn.Module):
    """Attention and perceptron, each behind its norm and added to the residual stream.

    Args:
        config: shape of the model.
        causal: whether later positions are masked.
        approximate: variant of GELU.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        causal: bool = True,
        approximate: Literal["none", "tanh"] = "tanh",
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.attention = GPT2Attention(config, causal=causal)
        self.feed_forward_norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        self.feed_forward = Perceptron(config.hidden_size, config.ffn_size, approximate=approximate)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSD: Tensor, documents: Documents | None = None) -> Tensor:
        """Apply one residual block of each kind; shape [batch, sequence, hidden]."""
        # Norms come before the blocks, unlike in the first GPT.
        x_BSD = x_BSD + self.dropout(self.attention(self.attention_norm(x_BSD), documents))
        return x_BSD + self.dropout(self.feed_forward(self.feed_forward_norm(x_BSD)))


class GPT2(Decoder):
    """The whole decoder, or the layers of one pipeline stage."""

    def __init__(self, config: ModelConfig) -> None:
        norm = nn.LayerNorm(config.hidden_size, eps=config.norm_epsilon)
        # GPT-2's layers are all alike, so the number of the layer is dropped.
        super().__init__(config, layer=lambda config, _: GPT2Layer(config), norm=norm)
        self.position_embedding: nn.Module | None = nn.Embedding(
            config.max_positions, config.hidden_size
        )

    def forward(self, inputs: Tensor, documents: Documents | None = None) -> Tensor:
        """Run the stage: tokens [batch, sequence] or hidden states in, logits or hidden states out.

        Hidden states have the shape [batch, sequence, hidden], logits [batch, sequence,
        vocabulary]. With documents, each is computed as if it were alone.
        """
        # Hidden states of an earlier stage have their positions already.
        placed = inputs.is_floating_point()
        x_BSD = inputs if placed else self.placed(self.embedded(inputs), documents)
        return self.logits(self.layer_loop(self.layers.values(), x_BSD, documents))

    def placed(self, x_BSD: Tensor, documents: Documents | None) -> Tensor:
        """Add the position embeddings to the tokens' embeddings [B, S, D].

        Raises:
            TypeError: the stage has no position embeddings.
        """
        if self.position_embedding is None:
            raise TypeError("a stage that embeds tokens needs position_embedding")
        # Positions count within documents. Without documents they are the same for all rows, and
        # [S, D] is broadcast.
        return x_BSD + self.position_embedding(self.places(x_BSD, documents))
