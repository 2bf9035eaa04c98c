"""A model on a layout, with everything that its memory and time depend on, and its software."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from drumline_contract.config import (
    DataParallel,
    Family,
    LoraConfig,
    MemoryConfig,
    ModelConfig,
    OptimizerKind,
    Precision,
    Recompute,
    TrainerConfig,
)
from drumline_contract.layout import Layout
from drumline_contract.layout_validation import micro_batch_count, shards_gradients
from drumline_contract.shapes.attention import computed_by_ranks
from drumline_contract.shapes.flops import (
    expert_vectors,
    latent_weights,
    layer_weights,
    replicated_vectors,
)
from drumline_contract.shapes.layer_kinds import kinds_among
from drumline_contract.shapes.partition import Partition, model_costs, partition
from drumline_contract.shapes.weight_sizes import learning_shares

_FLASH_2 = 0.50
"""Speed of FlashAttention-2's kernels, which were written for A100, beside that of large products
on H100: 326 TFLOP/s forward and backward, where products reach 655 (Shah et al. 2024, figures 5
and 6: causal, heads of 128, 16,384 tokens)."""
_CUDNN = 0.80
"""Peak of cuDNN's kernels: 522 TFLOP/s in the same figures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """Differences between code bases that train the same model with the same layout."""

    name: str
    fused_attention: bool = True
    """True: scores never reach memory (FlashAttention, Dao et al. 2022), and causal halves are
    skipped. False: scores are written, and all of them are computed."""
    newer_attention: float = 0.65
    """Speed of fused attention beside that of large products on devices newer than A100."""
    fused_gate: bool = False
    """True: the gate of a feed-forward is one kernel that keeps its inputs, and attention stores
    its result token by token. So neither is kept twice."""
    fused_norms: bool = True
    """True: a norm keeps its input and a number for each token. False: it also keeps its result in
    fp32 (RMSNorm of torch's CPU kernels)."""
    gathers_again: bool = False
    """True: with sequence parallelism the gathered input of a block is gathered again instead of
    kept."""
    loss_by_rows: bool = True
    """True: the loss keeps logits in their own type, and only some rows in fp32. False: it keeps
    their logarithms in fp32."""
    gradient_bytes: int = 4
    """Bytes of a parameter's gradient in messages."""
    overlaps_data: bool = True
    """True: gradients are sent during the last backward pass, and weights gathered during
    computation."""
    overlaps_tensor: bool = True
    """True: the sum of a block's input gradients overlaps with the weights' gradients."""
    splits_messages: bool = True
    """True: each tensor rank sends only its part between stages."""
    keeps_every_second: bool = False
    """True: selective recompute keeps every second product in a layer: the first, the third, ..."""
    mixed_state: tuple[int, int, int] | None = None
    """Bytes of a parameter, its gradient and its optimizer state. None: as in this trainer
    (`memory`)."""


DRUMLINE = Software(name="drumline", splits_messages=False)
"""This trainer."""
TORCH_ON_CPU = Software(name="torch on CPUs", splits_messages=False, fused_norms=False)
"""This trainer without a GPU."""
MEGATRON = Software(
    name="megatron-2021",
    loss_by_rows=False,
    fused_attention=False,
    gathers_again=True,
    gradient_bytes=2,
    overlaps_data=False,
    overlaps_tensor=False,
    mixed_state=(2, 4, 12),
)
"""Megatron-LM of 2021 (Narayanan et al.): fp16, attention in separate kernels, dropout, gradients
summed after the last backward pass."""
MEGATRON_CORE = Software(
    name="megatron-core",
    loss_by_rows=False,
    newer_attention=_CUDNN,
    fused_gate=True,
    gathers_again=True,
    splits_messages=False,
    mixed_state=(2, 4, 12),
)
"""Megatron-LM since 2023: attention of cuDNN where that has it, overlapped sums, bf16 with fp32
gradients; a fused gate (megatron/core/fusions/fused_bias_swiglu.py)."""
TORCHTITAN = Software(
    name="torchtitan",
    loss_by_rows=False,
    newer_attention=_FLASH_2,
    overlaps_tensor=False,
    splits_messages=False,
    keeps_every_second=True,
)
"""torchtitan of 2024 with FSDP2: state as in this trainer; torch of that year does not prefer cuDNN
(aten/src/ATen/native/transformers/cuda/sdp_utils.cpp). Its tensor parallelism waits for each sum
unless asynchronous TP is asked for, with which its own figures are 9 and 10 % faster
(benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md)."""
SOFTWARE = {software.name: software for software in (DRUMLINE, MEGATRON, MEGATRON_CORE, TORCHTITAN)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetup:
    """Input of one step."""

    model: ModelConfig
    layout: Layout
    sequence_length: int
    micro_batch: int
    """Number of sequences."""
    micro_batches: int
    recompute: Recompute = Recompute.NONE
    memory: MemoryConfig = MemoryConfig()  # noqa: RUF009 - it is frozen
    precision: Precision = Precision.BF16
    fp8: bool = False
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    averages: bool = False
    """True: an average of the weights is kept beside the optimizer's state."""
    lora: LoraConfig | None = None
    learning: tuple[float, float] = (1.0, 1.0)
    """Trainable share of the weights outside of experts, and of experts."""
    frozen_copy: bool = False
    """True: a frozen copy of the weights is kept, the reference of preferences."""
    reference_pass: bool = False
    """True: each micro-batch has a second forward pass, through the reference or without adapters.
    """
    software: Software = DRUMLINE

    @classmethod
    def of(
        cls, config: TrainerConfig, layout: Layout, *, software: Software = DRUMLINE
    ) -> TrainingSetup:
        """Return the setup of a configuration on a layout that `layout_validation` accepts.

        Args:
            config: configuration of the run.
            layout: degrees of parallelism.
            software: memory and times of the libraries.
        """
        # Phase 1: samples of a rank.
        count = micro_batch_count(layout, config)
        share = config.global_batch_size // layout.batch_ranks
        return cls(
            model=config.model,
            layout=layout,
            sequence_length=config.tokens_per_sample,
            # Ceiling division: the largest micro-batch determines memory and time.
            micro_batch=-(-share // count),
            micro_batches=count,
            recompute=config.memory.recompute,
            # The trainer decides gradient sharding by layout, so the plan uses its rule.
            memory=replace(config.memory, shard_gradients=shards_gradients(layout, config)),
            precision=config.precision,
            fp8=config.fp8,
            optimizer=config.optimizer.kind,
            averages=config.optimizer.average_decay > 0,
            lora=config.lora,
            learning=learning_shares(
                config.model, trainable=config.trainable, freeze=config.freeze
            ),
            frozen_copy=config.has_frozen_copy,
            reference_pass=config.dpo is not None,
            software=software,
        )

    @property
    def tokens(self) -> int:
        """Return the tokens of a micro-batch on one rank, as attention and products see them."""
        return self.micro_batch * self.sequence_length // self.layout.context

    @property
    def own_tokens(self) -> float:
        """Return the tokens whose residuals and norms this rank holds."""
        layout = self.layout
        # Sequence parallelism divides residuals and norms by the tensor degree.
        return self.tokens / (layout.tensor if layout.sequence_parallel else 1)

    @property
    def width(self) -> int:
        """Bytes of one value of an activation."""
        return 4 if self.precision is Precision.FP32 else 2

    @property
    def global_tokens(self) -> int:
        """Return the tokens of a step."""
        samples = self.micro_batch * self.micro_batches * self.layout.batch_ranks
        return samples * self.sequence_length

    @property
    def sharded(self) -> bool:
        """Return whether data parallelism shards the weights."""
        return self.layout.data_parallel is DataParallel.FSDP

    @property
    def data_ranks(self) -> int:
        """Number of ranks whose gradients are summed."""
        return self.layout.replicate * self.layout.shard * self.layout.context

    @property
    def shard_ranks(self) -> int:
        """Number of ranks among which data parallelism divides the state."""
        match self.layout.data_parallel:
            case DataParallel.FSDP:
                # Context ranks hold the same weights, so FSDP shards over them too.
                return self.layout.shard * self.layout.context
            case DataParallel.ZERO1 | DataParallel.ZERO2:
                return self.data_ranks
            case _:
                return 1

    def kinds(self, layers: range | None = None) -> tuple[tuple[TrainingSetup, int], ...]:
        """Return the setup with one kind of layers, and the number of these layers, by kind.

        None: all layers. Layers count as the ranks compute them, which may duplicate some work.
        """
        among = kinds_among(self.model, range(self.model.layers) if layers is None else layers)
        tensor = self.layout.tensor
        # Ranks that replicate key-value heads compute more than the model has.
        return tuple(
            (self.of_kind(computed_by_ranks(model, tensor=tensor)), count) for model, count in among
        )

    def of_kind(self, model: ModelConfig) -> TrainingSetup:
        """Return the setup as if all layers were of this kind."""
        return self if model is self.model else replace(self, model=model)

    def stage_layers(self) -> Partition:
        """Return the layers of each stage, in the trainer's partition."""
        return stage_layers(self.model, self.layout.stages, self.sequence_length)


@functools.lru_cache(maxsize=1024)
def stage_layers(model: ModelConfig, stages: int, sequence_length: int) -> Partition:
    """Return the trainer's own partition.

    Args:
        model: shape of the model.
        stages: number of pipeline stages.
        sequence_length: tokens in a sequence.
    """
    costs = model_costs(model, sequence_length=sequence_length)
    return partition(costs, stages=stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerParameters:
    """Weights of a layer by location, as counts."""

    dense: int
    """Weights without experts."""
    replicated: int
    """Weights that every tensor rank holds: norms, biases of rows, routers, latents."""
    experts: int

    def on_rank(self, *, tensor: int, expert: int) -> tuple[float, float]:
        """Return the weights of a rank before data parallelism: dense, and of experts."""
        # Replicated weights are not divided by the tensor degree.
        cut = (self.dense - self.replicated) / tensor
        return cut + self.replicated, self.experts / (tensor * expert)


@functools.lru_cache(maxsize=1024)
def layer_parameters(model: ModelConfig) -> LayerParameters:
    """Return the parameters of a layer, for a model with identical layers."""
    hidden = model.hidden_size
    # An expert has three matrices: gate, up and down.
    experts = 3 * hidden * model.features_per_expert * model.experts + expert_vectors(model)
    # Two norms with weight and bias, and biases of two row-cut products: 6 vectors.
    replicated = 6 * hidden
    if model.family is Family.LLAMA:
        router = hidden * model.experts
        replicated = replicated_vectors(model) + latent_weights(model) + router
    dense = layer_weights(model) - experts
    return LayerParameters(dense=dense, replicated=replicated, experts=experts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Weights of a model outside of its layers."""

    embedding: int
    """Weights of the first stage: word and learned position vectors, or patches."""
    head: int
    """Weights of the last stage, if they are not the embedding."""
    tied: int
    """Weights of the last stage, if they are the embedding."""


@functools.lru_cache(maxsize=1024)
def parameters(model: ModelConfig) -> Parameters:
    """Return the weights outside of the layers.

    Together with those of all layers they are `contract.shapes.flops.weights`.
    """
    # GPT-2 and ViT use LayerNorm with a bias, LLaMA uses RMSNorm without one.
    hidden = model.hidden_size
    gpt = model.family is not Family.LLAMA
    words = model.vocab_size * hidden
    if model.family is Family.VIT:
        # Patches have three input dimensions, a bias, and one vector for each position.
        pixels = model.channels * model.patch_size**2
        embedding = hidden * (pixels + 1 + model.class_token + model.image_positions)
        head = (hidden + 1) * model.classes
        tied = 0
    else:
        embedding = words + (model.max_positions * hidden if gpt else 0)
        head = 0 if model.tied_embeddings else words
        tied = words if model.tied_embeddings else 0
    final = 2 * hidden if gpt else hidden
    return Parameters(
        embedding=embedding,
        head=head + final,
        tied=tied,
    )
