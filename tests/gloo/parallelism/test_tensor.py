"""A model whose weights are shared out over ranks trains as the plain one does."""

from __future__ import annotations

from collections import defaultdict
from itertools import product

import pytest
import torch

from drumline_contract.config import Family, ModelConfig
from drumline_contract.config.variants import AttentionBias
from drumline_trainer.sharding.boxes import Box, tiles
from tests.gloo.gang import GangStarter
from tests.gloo.parallelism.tensor_ranks import Case, Held, Outcome, compare, go_back

pytestmark = pytest.mark.extended(keep=3, of="numbers of ranks")

LLAMA = ModelConfig(hidden_size=16, ffn_size=24, heads=4, kv_heads=2)
GPT2 = ModelConfig(
    family=Family.GPT2, hidden_size=16, ffn_size=24, heads=4, kv_heads=4, max_positions=9
)
VIT = ModelConfig(
    family=Family.VIT, hidden_size=16, ffn_size=24, heads=4, kv_heads=4, image_size=8, patch_size=2
)
"""16 patches and 10 classes."""
MIXTURE = {"experts": 4, "experts_per_token": 2, "balance_weight": 0.1}


def changed(model: ModelConfig, **fields: object) -> ModelConfig:
    return ModelConfig(**{f: getattr(model, f) for f in model.__dataclass_fields__} | fields)


def on_two_ranks() -> list[Case]:
    cases = [
        Case(
            model=changed(
                LLAMA, layers=1, tied_embeddings=tied, vocab_size=words, query_key_norm=tied
            ),
            sequence_parallel=sequence_parallel,
        )
        for sequence_parallel, tied, words in product((False, True), (False, True), (256, 257))
    ]
    for sequence_parallel in (False, True):
        rest = [
            Case(model=changed(LLAMA, **MIXTURE), sequence_parallel=sequence_parallel),
            Case(
                model=changed(LLAMA, **MIXTURE, shared_experts=1, expert_ffn_size=10),
                sequence_parallel=sequence_parallel,
            ),
            Case(
                model=changed(LLAMA, tied_embeddings=False),
                sequence_parallel=sequence_parallel,
                stages=2,
            ),
            Case(model=LLAMA, sequence_parallel=sequence_parallel, dtype=torch.bfloat16),
            Case(model=changed(LLAMA, kv_heads=1), sequence_parallel=sequence_parallel),
            Case(
                model=changed(LLAMA, layers=1),
                sequence_parallel=sequence_parallel,
                recompute=True,
            ),
        ]
        cases += [*on_any_ranks(sequence_parallel), *rest]
    return cases


def on_any_ranks(sequence_parallel: bool) -> list[Case]:
    models = (GPT2, changed(GPT2, vocab_size=259, tied_embeddings=False), VIT)
    return [Case(model=model, sequence_parallel=sequence_parallel) for model in models]


def on_four_ranks() -> list[Case]:
    wide = changed(LLAMA, kv_heads=4, vocab_size=257, **MIXTURE)
    shared = changed(LLAMA, heads=8, query_key_norm=True, attention_bias=AttentionBias.ALL)
    return [
        case
        for sequence_parallel in (False, True)
        for case in (
            *on_any_ranks(sequence_parallel),
            Case(model=wide, sequence_parallel=sequence_parallel),
            Case(model=shared, sequence_parallel=sequence_parallel),
        )
    ]


@pytest.mark.parametrize(("ranks", "cases"), [(2, on_two_ranks()), (4, on_four_ranks())])
def test_it_trains_as_the_plain_model_does(
    gangs: GangStarter, ranks: int, cases: list[Case]
) -> None:
    of_ranks: list[list[Outcome]] = gangs.run(compare, cases, world_size=ranks)
    for case, outcomes in zip(cases, zip(*of_ranks, strict=True), strict=True):
        tolerance = 2e-2 if case.dtype is torch.bfloat16 else 1e-6
        for outcome in outcomes:
            assert outcome.losses == outcomes[0].losses, case
            assert outcome.losses == pytest.approx(outcome.expected_losses, rel=tolerance), case
            for name, held in outcome.held.items():
                assert held.gradient_error < tolerance, (case, name)
                assert held.weight_error < tolerance, (case, name)
        for name in outcomes[0].held:
            check_shared_out([outcome.held[name] for outcome in outcomes])


def check_shared_out(held: list[Held]) -> None:
    """Each element is on one rank, or on several with the very same gradient."""
    holders = defaultdict[Box, list[Held]](list)
    for each in held:
        holders[each.cut.box].append(each)
    assert tiles(held[0].cut.shape, list(holders))
    for same in holders.values():
        assert [each.cut.copy for each in same] == list(range(len(same)))
        assert {each.cut.copies for each in same} == {len(same)}
        assert len({each.gradient_digest for each in same}) == 1


def test_what_goes_back_is_the_adjoint_of_what_went_forward(gangs: GangStarter) -> None:
    of_ranks = gangs.run(go_back, world_size=2)
    # on rank 0 positions hold 1, 2, 3, 4 and on rank 1 10, 11, 12, 13; gradients that come back are
    # 0, 1, 2, ... and 0, 10, 20, ...
    both, summed = [1, 2, 3, 4, 10, 11, 12, 13], [11, 13, 15, 17]
    assert of_ranks[0] == {
        "copy_to_region": ([1, 2, 3, 4], [0, 11, 22, 33]),
        "reduce_from_region": (summed, [0, 1, 2, 3]),
        "gather_positions": (both, [0, 11, 22, 33]),
        "reduce_scatter_positions": (summed[:2], [0, 1, 0, 10]),
        "scatter_positions": ([1, 2], [0, 1, 0, 10]),
        "divide_gradient": ([1, 2, 3, 4], [0, 0.5, 1, 1.5]),
        "gather_features": ([0, 1, 2, 3], [10]),
    }
    assert of_ranks[1] == {
        "copy_to_region": ([10, 11, 12, 13], [0, 11, 22, 33]),
        "reduce_from_region": (summed, [0, 10, 20, 30]),
        "gather_positions": (both, [44, 55, 66, 77]),
        "reduce_scatter_positions": (summed[2:], [0, 1, 0, 10]),
        "scatter_positions": ([12, 13], [0, 1, 0, 10]),
        "divide_gradient": ([10, 11, 12, 13], [0, 5, 10, 15]),
        "gather_features": ([0, 1, 2, 3], [11, 12, 13]),
    }
