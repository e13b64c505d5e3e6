"""Operations and bytes against numbers derived by hand."""

import pytest
import torch
from conftest import TINY
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from argus_cli.profiling.ceilings import Ceilings
from argus_cli.profiling.flops import Cost, decoder_costs, linear, tower_costs
from argus_cli.profiling.subject import open_subject, random_model
from argus_cli.smolvlm.config import parse_model

LAYER = ("qkv", "attention", "out", "fc1", "fc2")


def test_siglip_b16_at_512() -> None:
    """(512 / 16)^2 = 1,024 patches of width 768, 12 layers, MLP 3,072; a multiply-add is 2.

    qkv        2 * 1024 * 768 * 2304 =  3.624 G
    attention  q k: 2 * 1024 * 1024 * 768, and as much for the mixing = 3.221 G
    out        2 * 1024 * 768 * 768  =  1.208 G
    fc1, fc2   2 * 1024 * 768 * 3072 =  4.832 G each
    a layer                            17.717 G, twelve of them 212.6 G
    """
    costs = tower_costs(open_subject("smolvlm-256m").config, tiles=1, size=4)
    assert [round(costs[stage].flops / 12e9, 3) for stage in LAYER] == [
        3.624, 3.221, 1.208, 4.832, 4.832,
    ]  # fmt: skip
    assert sum(costs[stage].flops for stage in LAYER) == pytest.approx(212.6e9, rel=1e-3)
    assert costs["attention block"] + costs["MLP"] == sum((costs[s] for s in LAYER), Cost())
    # The patch embedding: 1,024 patches of 3 * 16 * 16 = 768 numbers, times 768 channels.
    assert costs["patch embedding"].flops == 2 * 1024 * 768 * 768
    # 1,024 / 16 = 64 tokens of 16 * 768 = 12,288 numbers, times the decoder's 576.
    assert costs["projection"].flops == 2 * 64 * 12_288 * 576


def test_bytes_of_a_linear() -> None:
    """3 x 5 in, 5 x 7 weights, 3 x 7 out: 71 numbers."""
    assert linear(3, 5, 7, size=2) == Cost(2 * 3 * 5 * 7, 2 * 71)


def test_tiles_multiply_operations_but_not_weights() -> None:
    config = open_subject("smolvlm-256m").config
    one, eight = (tower_costs(config, tiles, size=2)["fc1"] for tiles in (1, 8))
    assert eight.flops == 8 * one.flops
    assert eight.bytes == 8 * one.bytes - 7 * 12 * 2 * 768 * 3072


def test_decoder_of_smolvlm_256m() -> None:
    """Width 576, 9 query and 3 key-value heads of 64, MLP 1,536, 30 layers, 49,280 words.

    One position after 99: q and o 2 * 576 * 576 each, k and v 2 * 576 * 192 each, 100 pairs of
    576 numbers twice; three linears of 576 x 1,536.
    """
    costs = decoder_costs(open_subject("smolvlm-256m").config.text, new=1, seen=99, size=2)
    attention = 2 * (2 * 576 * 576 + 2 * 576 * 192) + 4 * 100 * 576
    assert costs["attention"].flops == 30 * attention
    assert costs["MLP"].flops == 30 * 3 * 2 * 576 * 1536
    assert costs["head"].flops == 2 * 576 * 49_280


def test_a_prompt_attends_causally() -> None:
    """4 positions make 1 + 2 + 3 + 4 = 10 pairs, 4 operations a number: 40 a query number."""
    text = open_subject("smolvlm-256m").config.text
    per_layer = decoder_costs(text, new=4, seen=0, size=2)["attention"].flops / 30
    assert per_layer - 4 * 2 * (2 * 576 * 576 + 2 * 576 * 192) == 40 * 576


@pytest.mark.parametrize("name", ["glimpse", "tiny"])
@torch.inference_mode()
def test_torchs_own_counter_agrees(name: str) -> None:
    """It sees what runs: convolutions, products, and attention in its plain form.

    The tiles differ, since equal ones cost the tower one.
    """
    config = parse_model(TINY) if name == "tiny" else open_subject(name).config
    model = random_model(config, torch.float32, torch.device("cpu"))
    side = config.vision.image_size
    tiles = torch.stack([torch.full((side, side, 3), n, dtype=torch.uint8) for n in (0, 1)])
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.encode_tiles(tiles)
    costs = tower_costs(config, tiles=2, size=4)
    stages = ("patch embedding", *LAYER, "projection")
    assert counter.get_total_flops() == sum(costs[stage].flops for stage in stages)


def test_the_roof() -> None:
    ceilings = Ceilings(flops=100.0, bandwidth=10.0)
    assert ceilings.ideal_s(Cost(200, 10)) == 2 and ceilings.computes(Cost(200, 10))
    assert ceilings.ideal_s(Cost(200, 50)) == 5 and not ceilings.computes(Cost(200, 50))
