"""The pictures of docs/training.md: `PYTHONPATH=operator:trainer:. python THIS_FILE`.

One language for all of them: a card for each rank, a bar for each of what it can hold (weights,
gradients, optimizer state, activations), and the bar as long as on a rank that is alone. Filled is
what this rank holds, and where in the whole it lies. The schedules are drawn from torch's own
orders, replayed with forward, input and weight gradients of one unit of time each.
"""

from __future__ import annotations

from rank_cards import CARD, GAP, KINDS, LEFT, WHOLE, Parts, Picture, numbered, piece

from drumline_contract.config import Schedule
from tests.unit.trainer.parallelism.pipeline_parallel.schedule_orders import (
    BACKWARD,
    FORWARD,
    INPUT,
    SECONDS,
    Replay,
    layout_of,
    pipeline_order,
)


def precision() -> None:
    """Bytes of a parameter on one rank, to scale."""
    picture = Picture()
    picture.heading("Bytes of one parameter on one rank", "activations are not to scale")
    rows = {
        "fp32": (("W", 4, "weight 4"), ("G", 4, "gradient 4"), ("O", 8, "two moments 8")),
        "bf16, fp16": (
            ("W", 2, "copy 2"),
            ("W", 4, "weight 4"),
            ("G", 4, "gradient 4"),
            ("O", 8, "two moments 8"),
        ),
    }
    for name, parts in rows.items():
        x = 94.0
        picture.text("t", 14, picture.y + 19, name)
        for kind, size, words in parts:
            picture.box(kind, x, picture.y, 26 * size - 2, 28)
            picture.text("n", x + 13 * size, picture.y + 18, words)
            x += 26 * size
        wide, label = (120, "activations") if name == "fp32" else (60, "activ.")
        x += 24 if name != "fp32" else 76
        picture.box("A", x, picture.y, wide, 28)
        picture.text("n", x + wide / 2, picture.y + 18, label)
        picture.y += 38
    picture.write(
        "precision",
        title="What fp32 and the 16-bit types keep for one parameter",
        told="fp32: weight 4, gradient 4, moments 8 bytes. bf16: 2 more for the copy that computes;"
        " activations halve.",
    )


def lora() -> None:
    """Bytes of a parameter, to scale, the adapters as half a percent of the model."""
    picture = Picture()
    picture.heading("Bytes of one parameter of the model on one rank, bf16", "to scale")
    rows = {
        "all learn": (
            ("W", 6.0, "copy 2, weight 4"),
            ("G", 4.0, "gradient 4"),
            ("O", 8.0, "moments 8"),
        ),
        "LoRA": (("W", 2.0, "base 2"), ("O", 0.1, "")),
        "QLoRA": (("W", 0.5625, ""), ("O", 0.1, "")),
    }
    for name, parts in rows.items():
        x = 84.0
        picture.text("t", 14, picture.y + 19, name)
        for kind, size, words in parts:
            picture.box(kind, x, picture.y, max(3, 26 * size - 2), 28)
            picture.text("n", x + 13 * size, picture.y + 18, words)
            x += 26 * size
        if name != "all learn":
            base = "" if name == "LoRA" else "base 0.56, "
            words = f"{base}adapters with gradients and moments 0.1"
            picture.text("d", x + 12, picture.y + 18, words)
        picture.y += 38
    picture.write("lora", title="LoRA and QLoRA", told="A frozen base, and small adapters.")


def recompute() -> None:
    """Which activations of nine layers stay."""
    picture = Picture()
    picture.heading("What stays of nine layers", "a filled square is kept for the backward pass")
    keeps = {
        "none": (range(9), range(4)),
        "selective": (range(9), (0, 1, 3)),
        "blocks (k = 3)": (range(0, 9, 3), (0,)),
        "full": (range(9), (0,)),
    }
    for name, (layers, cells) in keeps.items():
        picture.text("s", 14, picture.y + 12, name)
        for layer in range(9):
            for cell in range(4):
                kind = "A" if layer in layers and cell in cells else "none"
                picture.box(kind, 124 + 68 * layer + 15 * cell, picture.y, 13, 13)
        picture.y += 24
    words = "of each layer: its input, a product, something cheap, a product"
    picture.text("d", 124, picture.y + 6, words)
    picture.y += 14
    picture.write(
        "recompute",
        title="Recompute",
        told="none keeps everything; selective each layer's input and products; blocks the input of"
        " every third layer; full the input of every layer.",
    )


def accumulation() -> None:
    """Four micro-batches, one update."""
    picture = Picture()
    picture.heading("One step of four micro-batches on one rank", "time runs to the right")
    x = 104.0
    picture.text("d", 14, picture.y + 17, "work")
    picture.text("d", 14, picture.y + 72, "activations")
    picture.text("d", 14, picture.y + 106, "gradients")
    for number in range(4):
        picture.box("F", x, picture.y, 42, 26)
        picture.text("n", x + 21, picture.y + 17, f"F{number}")
        picture.box("B", x + 44, picture.y, 84, 26)
        picture.text("n", x + 86, picture.y + 17, f"B{number}")
        top = picture.y + 80
        picture.shapes.append(f'<path class="A" d="M{x} {top} l42 -40 l86 40 z"/>')
        x += 134
    picture.box("G", 148, picture.y + 92, x - 148, 18)
    picture.text("n", (148 + x) / 2, picture.y + 105, "summed in place")
    picture.box("O", x + 4, picture.y, 76, 26)
    picture.text("n", x + 42, picture.y + 17, "sum, update")
    picture.y += 116
    picture.write(
        "accumulation",
        title="Gradient accumulation",
        told="Activations rise and fall once for each micro-batch; gradients are summed in place;"
        " ranks exchange them and the optimizer runs once.",
    )


def data_parallel() -> None:
    """ddp, zero1 and zero2, fsdp and hsdp over four ranks."""
    ranks, samples = range(4), [f"samples {4 * n} to {4 * n + 3}" for n in range(4)]
    own = [piece(n, 4) for n in ranks]

    def held(whole: str) -> list[dict[str, Parts]]:
        return [{kind: WHOLE if kind in whole else own[n] for kind in KINDS} for n in ranks]

    picture = Picture()
    picture.heading("ddp", "everything on every rank, other samples")
    picture.cards(held("WGO"), names=numbered(4), notes=samples)
    picture.link(0, 3, "all-reduce of gradients, during the last backward pass")
    picture.y += 26
    picture.write("ddp", title="DDP", told="Four ranks with all weights, gradients and state.")

    picture = Picture()
    picture.heading("zero1", "each rank updates a quarter of the weights")
    picture.cards(held("WG"), names=numbered(4))
    picture.link(0, 3, "reduce-scatter of gradients, then all-gather of weights: once a step")
    picture.y += 34
    picture.heading("zero2", "and keeps the summed gradients of that quarter only")
    picture.cards(held("W"), names=numbered(4))
    picture.link(0, 3, "reduce-scatter for each micro-batch, all-gather of weights once a step")
    picture.y += 26
    picture.write("zero", title="ZeRO-1 and ZeRO-2", told="Shared state; shared gradients too.")

    picture = Picture()
    picture.heading("fsdp", "nobody holds everything; one layer at a time is gathered")
    picture.cards(held(""), names=numbered(4))
    picture.link(0, 3, "all-gather of each layer, twice; reduce-scatter of gradients")
    picture.y += 34
    picture.heading("fsdp with replicate: 2 (HSDP)", "two copies, each over two ranks")
    halves: list[dict[str, Parts]] = [
        {"W": piece(n % 2, 2), "G": piece(n % 2, 2), "O": piece(n % 2, 2), "A": own[n]}
        for n in ranks
    ]
    picture.cards(halves, names=numbered(4))
    picture.link(0, 1, "gathers within a copy")
    picture.link(2, 3, "gathers within a copy")
    picture.y += 28
    picture.link(0, 3, "all-reduce of gradient shards between the copies")
    picture.y += 26
    picture.write("fsdp", title="FSDP and HSDP", told="Shards over four ranks, or over two twice.")


def tensor() -> None:
    """Two ranks share every product."""
    picture = Picture(width=760)
    picture.heading("tensor: 2", "every matrix cut in two; the same samples")
    half: list[dict[str, Parts]] = [
        {
            "W": piece(n, 2),
            "G": piece(n, 2),
            "O": piece(n, 2),
            "A": ((0, 0.18), (0.18 + 0.41 * n, 0.59 + 0.41 * n)),
        }
        for n in range(2)
    ]
    picture.cards(half, names=numbered(2), notes=["half of the heads", "the other half"])
    picture.link(0, 1, "4 all-gathers, 4 reduce-scatters a layer")
    right = LEFT + 2 * (CARD + GAP) + 6
    lines = (
        "Activations: inputs of products are",
        "whole on both (left), all else is",
        "shared out.",
    )
    for line, words in enumerate(lines):
        picture.text("d", right, picture.y - 62 + 17 * line, words)
    picture.y += 26
    picture.write("tensor", title="Tensor parallelism", told="Halves of all matrices on each rank.")


def pipeline() -> None:
    """What the ranks hold, and four schedules as torch orders them."""
    picture = Picture()
    picture.heading("pipeline: 4", "each rank has a quarter of the layers")
    cards: list[dict[str, Parts]] = [
        {kind: piece(n, 4) for kind in "WGO"} | {"A": ((0, 1 - n / 4),)} for n in range(4)
    ]
    notes = ["4 micro-batches", "3", "2", "1 in flight (1f1b)"]
    picture.cards(cards, names=numbered(4), notes=notes)
    picture.link(0, 3, "hidden states to the next rank, their gradients back")
    picture.y += 36
    for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZBV):
        _schedule(picture, schedule)
    words = "blue: forward; green: backward (light: of inputs, dark: of weights)"
    picture.text("d", 14, picture.y + 6, words)
    picture.y += 12
    picture.write("pipeline", title="Pipeline parallelism", told="Layers by rank; four schedules.")


def _schedule(picture: Picture, schedule: Schedule) -> None:
    """Eight micro-batches over four ranks."""
    layout = layout_of(schedule, 4)
    order = pipeline_order(layout, micro_batches=8)
    replay = Replay(layout=layout, order=order)
    replay.run()
    picture.heading(str(schedule), f"bubble {replay.bubble():.1%}")
    unit = 640 / (33 * layout.stages_per_rank)
    for rank, works in order.items():
        picture.text("d", 14, picture.y + 12, f"rank {rank}")
        picture.box("none", LEFT, picture.y, 33 * layout.stages_per_rank * unit, 15)
        for what, stage, number in works:
            lasts = SECONDS[what] * unit
            x = LEFT + replay.ended[what, stage, number] * unit - lasts
            kind = {FORWARD: "F", BACKWARD: "B", INPUT: "I"}.get(what, "Q")
            picture.box(kind, x, picture.y, lasts - 1, 15)
            if layout.stages_per_rank == 1:
                picture.text("n", x + lasts / 2, picture.y + 11, str(number))
        picture.y += 18
    picture.y += 8


def context() -> None:
    """Two ranks share every sequence."""
    picture = Picture(width=760)
    picture.heading("context: 2", "each rank has two of four chunks of every sequence")
    chunks: tuple[Parts, Parts] = (((0, 0.25), (0.75, 1)), ((0.25, 0.75),))
    cards: list[dict[str, Parts]] = [
        {"W": piece(n, 2), "G": piece(n, 2), "O": piece(n, 2), "A": chunks[n]} for n in range(2)
    ]
    picture.cards(cards, names=numbered(2), notes=["chunks 0 and 3", "chunks 1 and 2"])
    picture.link(0, 1, "keys and values go around the ring")
    right = LEFT + 2 * (CARD + GAP) + 6
    for line, words in enumerate(
        ("With fsdp, shards lie on these", "ranks too; with ddp weights are", "whole on each.")
    ):
        picture.text("d", right, picture.y - 62 + 17 * line, words)
    picture.y += 26
    picture.write("context", title="Context parallelism", told="Zigzag halves of each sequence.")


def expert() -> None:
    """Four ranks share eight experts."""
    picture = Picture()
    picture.heading("expert: 4 of 4 ranks", "experts shared out; attention as the data axis has it")
    shared, rest = 0.2, 0.8
    cards: list[dict[str, Parts]] = [
        dict.fromkeys("WGO", ((0, shared), (0.2 + rest * n / 4, 0.2 + rest * (n + 1) / 4)))
        | {"A": piece(n, 4)}
        for n in range(4)
    ]
    notes = [f"experts {2 * n} and {2 * n + 1} of 8" for n in range(4)]
    picture.cards(cards, names=numbered(4), notes=notes)
    picture.link(0, 3, "all-to-all: tokens to their experts and back, forward and backward")
    picture.y += 26
    picture.write("expert", title="Expert parallelism", told="Two of eight experts on each rank.")


def three_dimensional() -> None:
    """DP 2 x TP 2 x PP 2 on two nodes of four."""
    picture = Picture()
    for node in range(2):
        layers = "layers 0 and 1" if node == 0 else "layers 2 and 3"
        picture.heading(f"node {node}: stage {node} of the pipeline", layers)
        cards: list[dict[str, Parts]] = []
        for n in range(4):
            shard, half = divmod(n, 2)
            start = 0.5 * node + 0.25 * half
            mine = ((start + 0.125 * shard, start + 0.125 * (shard + 1)),)
            cards.append({"W": mine, "G": mine, "O": mine})
        names = [f"rank {4 * node + n}" for n in range(4)]
        picture.cards(cards, names=names, notes=[f"samples part {n // 2}" for n in range(4)])
        picture.link(0, 1, "tp")
        picture.link(2, 3, "tp")
        picture.y += 32
    picture.text("d", LEFT, picture.y + 2, "fsdp: ranks 0 and 2, 1 and 3, 4 and 6, 5 and 7")
    picture.y += 16
    picture.text("d", LEFT, picture.y + 2, "pp: ranks 0 and 4, 1 and 5, 2 and 6, 3 and 7")
    picture.y += 8
    picture.write("3d", title="Three axes at once", told="Two nodes of four ranks.")


DRAWN = (precision, recompute, accumulation, lora, data_parallel)
CUT = (tensor, pipeline, context, expert, three_dimensional)

if __name__ == "__main__":
    for draw in (*DRAWN, *CUT):
        draw()
