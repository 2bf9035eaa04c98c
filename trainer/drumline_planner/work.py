"""Work of a rank on one micro-batch, part by part, and the time of each part on a device.

A part consists of operations in the matrix units, bytes through memory, kernels, and messages on an
axis. The model is a roofline (Williams et al. 2009) with sums instead of maxima, because kernels of
a layer follow each other. Products take operations / speed, everything else bytes / bandwidth.
Products of few features do not fill a device. Their speed is w / (w + half_width) of the speed of
large products, where w is the geometric mean of the sizes that a rank multiplies.
"""

from __future__ import annotations

from dataclasses import dataclass

from drumline_contract.config import Family, Offload, Recompute
from drumline_contract.hardware import GpuModel
from drumline_contract.shapes.flops import latent_weights, layer_products, seen_positions
from drumline_planner.activations import layer_kept, layers_kept, run_length
from drumline_planner.adapter_weights import layer_adapters
from drumline_planner.constants import Constants
from drumline_planner.network import Span
from drumline_planner.setup import TrainingSetup

HOST_BANDWIDTH = 20e9
"""Bytes per second between a GPU and its host's memory, while the other GPUs of the host copy too:
PCIe 4 carries 25, and memory of 300 to 400 is shared by eight."""
DRIVE_BANDWIDTH = 3e9
"""Bandwidth of a file on a drive of the node: sustained write speed of one NVMe drive."""
_FORWARD_KERNELS = 24
"""Kernels of a layer. Backward has twice as many."""
_FP8_SHARE = 0.87
"""Share of the fp8-over-bf16 peak that large products reach. On H100, scaled products reach 1250
TFLOP/s."""
_FUSED_ATTENTION = 0.65
"""Speed of fused attention kernels beside that of large products on A100 (Dao 2023)."""
_WRITTEN_ATTENTION = 0.5
"""Share of the speed for batched products that are as narrow as a head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSeconds:
    """Seconds of a rank for one micro-batch, for a layer or an end of the model."""

    products: float = 0.0
    memory: float = 0.0
    """Seconds of memory traffic, and between kernels."""
    tensor: float = 0.0
    """Seconds of exposed messages of the tensor axis. The fields below are exposed seconds, too."""
    context: float = 0.0
    expert: float = 0.0
    data: float = 0.0
    """Gathering sharded weights."""
    stages: float = 0.0
    """Hidden states to and from other stages."""
    host: float = 0.0
    """Activations to the host's memory and back."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return (
            self.products
            + self.memory
            + self.tensor
            + self.context
            + self.expert
            + self.data
            + self.stages
            + self.host
        )

    def plus(self, other: PassSeconds, *, count: float = 1.0) -> PassSeconds:
        """Add a number of passes of another kind."""
        return PassSeconds(
            products=self.products + count * other.products,
            memory=self.memory + count * other.memory,
            tensor=self.tensor + count * other.tensor,
            context=self.context + count * other.context,
            expert=self.expert + count * other.expert,
            data=self.data + count * other.data,
            stages=self.stages + count * other.stages,
            host=self.host + count * other.host,
        )


NOTHING = PassSeconds()


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """The three passes of a layer or an end."""

    forward: PassSeconds
    input: PassSeconds
    """Gradient of the inputs, including recomputation."""
    weight: PassSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """The axes on the cluster that parts of a layer use."""

    tensor: Span
    context: Span
    expert: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """Speeds of one device with the constants applied."""

    products: float
    """FLOP/s of large products."""
    attention: float
    """FLOP/s of attention and the head. Never fp8."""
    fused: float
    """FLOP/s of fused attention kernels."""
    memory: float
    kernel: float
    half_width: float
    passes: float

    @classmethod
    def of(cls, gpu: GpuModel, constants: Constants, setup: TrainingSetup) -> Speeds:
        """Return the speeds for the precision in which the setup multiplies.

        Args:
            gpu: peak speeds of the GPU.
            constants: calibrated efficiencies.
            setup: model, batch and layout.
        """
        # Gain over the datasheet: sustained clocks, then the calibrated efficiency.
        dense = gpu.bf16_flops * gpu.sustained * constants.matmul
        if setup.width == 4:  # TF32 at best
            dense /= 2
        products = dense
        if setup.fp8 and gpu.fp8_flops is not None:
            products = dense * gpu.fp8_flops / gpu.bf16_flops * _FP8_SHARE
        # Devices with fp8 units are newer than A100.
        newer = gpu.fp8_flops is not None
        return cls(
            products=products,
            attention=dense,
            fused=dense * (setup.software.newer_attention if newer else _FUSED_ATTENTION),
            memory=gpu.memory_bandwidth,
            kernel=constants.kernel,
            half_width=constants.half_width,
            passes=constants.passes,
        )


def layer_passes(setup: TrainingSetup, speeds: Speeds, spans: Spans) -> Passes:
    """Return a layer's passes over one micro-batch, for a model with identical layers.

    Args:
        setup: model, batch and layout.
        speeds: FLOP/s and bandwidths.
        spans: location of the axes.
    """
    # Phase 1: products. A weight costs 2 operations for each token.
    tensor = setup.layout.tensor
    # Latents are computed by every tensor rank.
    weights = layer_products(setup.model) + (tensor - 1) * latent_weights(setup.model)
    products = 2.0 * setup.tokens * weights / tensor / _speed(setup, speeds)
    attention = _attention_seconds(setup, speeds)
    # Phase 2: memory traffic. Kept activations measure what a layer writes.
    kept = layer_kept(setup).total
    streamed = setup.width * weights / tensor / speeds.memory
    memory = speeds.passes * kept / speeds.memory + _FORWARD_KERNELS * speeds.kernel
    # Phase 3: messages.
    message = _tensor_message(setup, spans.tensor)
    ring, exchange = _ring(setup, spans.context), _exchange(setup, spans.expert)
    merging = _merging(setup) / speeds.memory
    # Phase 4: forward pass. Two tensor messages: after attention and after the feed-forward.
    forward = PassSeconds(
        products=products + attention,
        memory=memory + streamed + merging,
        tensor=2 * message,
        # The ring overlaps with attention.
        context=max(0.0, ring - attention),
        expert=2 * exchange,
    )
    # Phase 5: backward passes. A message hides behind the product of the weights' gradient.
    hidden_behind = products if setup.software.overlaps_tensor else 0.0
    entering = max(0.0, message - hidden_behind / 2) * 2 if hidden_behind else 2 * message
    again = setup.software.gathers_again and setup.layout.sequence_parallel
    backward = PassSeconds(
        # FlashAttention computes scores again: 5 products instead of 2 (Dao et al. 2022).
        products=products + 2.5 * attention
        if setup.software.fused_attention
        else products + 2.0 * attention,
        memory=1.5 * memory + streamed + merging,
        tensor=entering + (message if again else 0.0),
        # The backward ring carries gradients of keys and values too.
        context=max(0.0, 2 * ring - 2 * attention),
        expert=2 * exchange,
    )
    # The weight pass reads activations and gradients, and writes weight gradients twice as wide.
    weight = PassSeconds(products=products, memory=0.5 * memory + 2 * streamed)
    if setup.lora is not None:  # what is frozen has no gradient; adapters cost their share of all
        share = layer_adapters(setup.model, setup.lora, tensor=tensor) * tensor / weights
        extra = PassSeconds(products=share * products)
        forward, backward = forward.plus(extra), backward.plus(extra)
        weight = PassSeconds(products=share * products, memory=share * weight.memory)
    # Recomputation belongs to the input pass, since it must precede both gradients.
    return Passes(
        forward=forward,
        input=backward.plus(_recompute_work(setup, forward, attention)),
        weight=weight,
    )


def with_host_copies(setup: TrainingSetup, layer: Passes) -> Passes:
    """Return the passes with the exposed part of copying the layer's activations out and back.

    A group is copied while the next is computed (`memory.offloaded_activations`). With blocks, the
    input of a run of layers is copied, so each layer has its share.
    """
    if setup.memory.offload_activations is Offload.NONE:
        return layer
    # Without runs each layer's activations are one group.
    run = 1
    if setup.recompute is Recompute.BLOCKS:
        run = run_length(setup, max(1, setup.model.layers // setup.layout.stages))
    size = layers_kept(setup, range(run)) / run
    copying = size / host_bandwidth(setup.memory.offload_activations)
    # The copy overlaps with the pass of one layer.
    out = max(0.0, copying - layer.forward.total)
    back = max(0.0, copying - layer.input.total - layer.weight.total)
    return Passes(
        forward=layer.forward.plus(PassSeconds(host=out)),
        input=layer.input.plus(PassSeconds(host=back)),
        weight=layer.weight,
    )


def host_bandwidth(place: Offload) -> float:
    """Return the bytes per second between a GPU and memory outside of it."""
    return DRIVE_BANDWIDTH if place is Offload.NVME else HOST_BANDWIDTH


def head_passes(setup: TrainingSetup, speeds: Speeds, spans: Spans) -> Passes:
    """Return the passes of the last stage besides its layers: the head and the loss.

    Args:
        setup: model, batch and layout.
        speeds: FLOP/s and bandwidths.
        spans: location of the axes.
    """
    model, tensor = setup.model, setup.layout.tensor
    if model.family is Family.VIT:
        return Passes(forward=NOTHING, input=NOTHING, weight=NOTHING)
    # The head is never fp8, and its vocabulary is cut by the tensor axis.
    logits = setup.tokens * model.outputs / tensor
    products = 2.0 * logits * model.hidden_size / speeds.attention
    # 12 bytes: three fp32 passes over the logits.
    traffic = logits * (setup.width + 12.0) / speeds.memory
    weights = setup.width * model.outputs * model.hidden_size / tensor / speeds.memory
    message = _tensor_message(setup, spans.tensor)
    half = PassSeconds(products=products, memory=traffic + weights, tensor=message)
    # A frozen head has no weight gradient.
    if setup.lora is not None:
        return Passes(forward=half, input=half, weight=NOTHING)
    return Passes(
        forward=half, input=half, weight=PassSeconds(products=products, memory=2 * weights)
    )


def _speed(setup: TrainingSetup, speeds: Speeds) -> float:
    """Return the FLOP/s of a layer's products on one rank."""
    model, tensor = setup.model, setup.layout.tensor
    inner = model.features_per_expert if model.experts else model.ffn_size
    # Geometric mean of the two dimensions that a rank multiplies.
    width = (model.hidden_size * inner) ** 0.5 / tensor
    tokens = setup.tokens
    if model.experts:
        # Routing spreads tokens over experts, so each product has fewer rows.
        tokens = tokens * model.experts_per_token * setup.layout.expert / model.experts
    filled = min(width, tokens)
    # Saturation: half of the speed at `half_width`.
    return speeds.products * filled / (filled + speeds.half_width)


def _attention_seconds(setup: TrainingSetup, speeds: Speeds) -> float:
    """Return the seconds of scores and values in a forward pass."""
    model = setup.model
    padded = model.features_per_head  # values too, where they are smaller
    size = model.heads * padded / setup.layout.tensor
    seen = seen_positions(model, sequence_length=setup.sequence_length) / model.layers
    # Scores and values: 2 products with 2 operations each.
    flops = 4.0 * setup.tokens * seen * size
    if not setup.software.fused_attention:
        return flops / speeds.attention / _WRITTEN_ATTENTION
    # Causal kernels skip the masked half.
    causal = 1.0 if model.family is Family.VIT else 0.5
    return flops * causal / speeds.fused


def _recompute_work(setup: TrainingSetup, forward: PassSeconds, attention: float) -> PassSeconds:
    """Return the extra time of recompute in a backward pass."""
    match setup.recompute:
        case Recompute.NONE:
            return NOTHING
        case Recompute.SELECTIVE:
            # Separate attention kernels repeat the core only (Korthikanti et al. 2022).
            core = PassSeconds(products=attention, memory=0.5 * forward.memory)
            twice = _second_products(setup) * (forward.products - attention)
            cheap = PassSeconds(products=twice, memory=0.7 * forward.memory)
            return cheap if setup.software.fused_attention else core
        case Recompute.FULL:
            return forward
        case Recompute.BLOCKS:
            layers = max(1, setup.model.layers // setup.layout.stages)
            # Layers run forward 3 - 1/k times, one of them in the forward pass (Chen et al. 2016).
            return NOTHING.plus(forward, count=2 - 1 / run_length(setup, layers))


def _second_products(setup: TrainingSetup) -> float:
    """Return the share of a layer's products that selective recompute repeats: keys, output, up."""
    model = setup.model
    if not setup.software.keeps_every_second:
        return 0.0
    heads = (model.heads + model.kv_heads) * model.features_per_head
    return model.hidden_size * (heads + model.ffn_size) / layer_products(model)


def _tensor_message(setup: TrainingSetup, span: Span) -> float:
    """Return the time of one of a layer's four tensor messages: an all-reduce or its halves."""
    if span.ranks == 1:
        return 0.0
    return span.all_reduce(setup.width * setup.tokens * setup.model.hidden_size)


def _ring(setup: TrainingSetup, span: Span) -> float:
    """Return the seconds of keys and values once around the ring."""
    if span.ranks == 1:
        return 0.0
    model = setup.model
    # Keys and values: two tensors.
    size = 2.0 * setup.width * setup.tokens * model.kv_heads * model.features_per_head
    block = size / setup.layout.tensor
    return (span.ranks - 1) * (block / span.direct + span.latency / span.ranks)


def _merging(setup: TrainingSetup) -> float:
    """Return the bytes of merging each block's result into the earlier ones, in fp32.

    Half of the blocks are masked.
    """
    context, model = setup.layout.context, setup.model
    if context == 1:
        return 0.0
    size = setup.tokens * model.heads * model.features_per_head / setup.layout.tensor
    # 12 bytes: read both fp32 parts, write the sum. Half of the steps are masked.
    return 12.0 * size * (context + 1) / 2


def _exchange(setup: TrainingSetup, span: Span) -> float:
    """Return the seconds of sending rows to their experts, or back."""
    if span.ranks == 1 or not setup.model.experts:
        return 0.0
    rows = setup.tokens * setup.model.experts_per_token
    return span.all_to_all(setup.width * rows * setup.model.hidden_size)
