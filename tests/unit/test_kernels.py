"""The fast modules against their plain twins, and when they are put in place."""

from copy import deepcopy

import pytest
import torch

from argus_cli.smolvlm import kernels
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import ModelConfig, TextConfig, VisionConfig
from argus_cli.smolvlm.model import SmolVLM

CONFIG = ModelConfig(
    model_type="smolvlm",
    vision=VisionConfig(
        hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
        image_size=64, patch_size=16, layer_norm_eps=1e-6, stem=None,
    ),
    text=TextConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=16, vocab_size=128, max_position_embeddings=256,
        rope_theta=10_000.0, rms_norm_eps=1e-5,
    ),
    scale_factor=2,
    image_token_id=5,
    tie_word_embeddings=True,
)  # fmt: skip
# float32: the same sums in another order. bfloat16 keeps 8 bits: one rounding moves a number by up
# to 2^-9 of it, and over three layers the fast forms round at other places than their twins.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2**-5}


modes = pytest.mark.parametrize(
    ("dtype", "widen"),
    [
        pytest.param(torch.float32, False, id="float32"),
        pytest.param(torch.bfloat16, False, id="bfloat16"),
        pytest.param(torch.bfloat16, True, id="bfloat16-widened"),
    ],
)


def pair(dtype: torch.dtype, *, widen: bool = False) -> tuple[SmolVLM, SmolVLM]:
    """A random model, plain and fast."""
    torch.manual_seed(0)
    plain = SmolVLM(CONFIG).to(dtype).eval().requires_grad_(False)
    return plain, kernels.specialise(deepcopy(plain), widen=widen)


def largest_difference(ours: torch.Tensor, twin: torch.Tensor) -> float:
    return float((ours - twin).abs().max() / twin.abs().max())


@modes
def test_tower_equals_its_twin(dtype: torch.dtype, widen: bool) -> None:
    plain, fast = pair(dtype, widen=widen)
    tiles = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8)
    difference = largest_difference(fast.encode_tiles(tiles), plain.encode_tiles(tiles))
    assert difference < TOLERANCE[dtype]


@pytest.mark.parametrize("padding", [None, [0, 3]], ids=["whole", "padded"])
@modes
def test_prefill_and_decode_equal_their_twins(
    dtype: torch.dtype, widen: bool, padding: list[int] | None
) -> None:
    plain, fast = pair(dtype, widen=widen)
    x = torch.randn(2, 9, 64, dtype=dtype)
    pads = None if padding is None else torch.tensor(padding)
    models = (fast, plain)
    caches = [KVCache(CONFIG.text, 2, 12, dtype=model.activation_dtype) for model in models]
    for start, end in ((0, 6), (6, 7), (7, 9)):  # a prompt, one token, several after others
        ours, twin = (
            model.next_logits(x[:, start:end].to(model.activation_dtype), cache, pads)
            for model, cache in zip(models, caches, strict=True)
        )
        assert largest_difference(ours, twin) < TOLERANCE[dtype]


def test_every_heavy_module_is_replaced() -> None:
    fast = pair(torch.float32)[1]
    kinds = {type(module) for module in fast.modules()}
    wanted = {kernels.VisionAttention, kernels.VisionMLP, kernels.Attention, kernels.MLP}
    assert wanted <= kinds


def test_nothing_is_replaced_where_torch_cannot_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no oneDNN")

    monkeypatch.setattr(kernels, "PackedLinear", refuse)
    fast = pair(torch.float32)[1]
    assert not any(type(m).__module__ == kernels.__name__ for m in fast.modules())


def test_no_weight_is_held_twice() -> None:
    plain, fast = pair(torch.float32)
    held = {
        id(t): t.numel()
        for m in fast.modules()
        for t in vars(m).values()
        if torch.is_tensor(t) and t.dim()
    }
    parameters = sum(p.numel() for p in fast.parameters())
    assert sum(held.values()) + parameters == sum(p.numel() for p in plain.parameters())


def test_equal_tiles_cost_the_tower_one() -> None:
    model = pair(torch.float32)[1]
    seen = []
    model.vision_model.register_forward_hook(lambda _, args, out: seen.append(len(args[0])))
    tiles = torch.randint(0, 256, (2, 64, 64, 3), dtype=torch.uint8)
    features = model.encode_tiles(tiles[[0, 1, 0, 0, 1]])
    assert sum(seen) == 2
    assert torch.equal(features, model.encode_tiles(tiles)[[0, 1, 0, 0, 1]])


STORED = pytest.mark.parametrize(
    # Of sums of 64 terms: in another order, and of numbers rounded to 2^-9 on their way in and out.
    ("linear", "tolerance"), [(kernels.Int8Linear, 1e-5), (kernels.NarrowLinear, 2**-7)]
)  # fmt: skip
Stored = type[kernels.StoredLinear]


def test_int8_weights_are_rounded_to_a_255th_of_their_range() -> None:
    torch.manual_seed(0)
    weight = torch.randn(48, 64)
    linear = kernels.Int8Linear(weight)
    largest = weight.abs().amax(1, keepdim=True)
    blocks = (weight / largest).view(linear.blocks, -1, 64)
    step = (blocks.amax(1) - blocks.amin(1)) / 255  # of each input in each block
    weights = (linear(torch.eye(64)).T / largest).view_as(blocks)  # more rows than are a few
    assert ((weights - blocks).abs() <= step[:, None] * 0.5001).all()


@STORED
@pytest.mark.parametrize("rows", [1, 2, 5, 8, 16])
def test_stored_weights_give_few_rows_what_they_give_many(
    linear: Stored, tolerance: float, rows: int
) -> None:
    torch.manual_seed(0)
    layer, x = linear(torch.randn(48, 64).bfloat16()), torch.randn(64, 64)
    assert largest_difference(layer(x[:rows]), layer(x)[:rows]) < tolerance


@STORED
def test_stored_weights_give_a_row_in_a_batch_what_they_give_it_alone(
    linear: Stored, tolerance: float
) -> None:
    torch.manual_seed(0)
    layer, x = linear(torch.randn(48, 64).bfloat16()), torch.randn(8, 1, 64)
    assert torch.equal(layer(x), torch.cat([layer(row[None]) for row in x]))


@STORED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_stored_weights_take_some_of_several_positions(
    linear: Stored, tolerance: float, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    layer, x = linear(torch.randn(48, 64).bfloat16()), torch.randn(3, 5, 64, dtype=dtype)
    for some in (x[:, -1], x[:, 1:3]):
        assert torch.equal(layer(some), layer(some.contiguous()))
        assert layer(some).dtype == dtype


@STORED
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 40), (50, 72), (7, 5), (1024, 33)])
def test_stored_weights_take_any_shape(
    linear: Stored, tolerance: float, outputs: int, inputs: int
) -> None:
    torch.manual_seed(0)
    weight = torch.randn(outputs, inputs).bfloat16()
    for rows in (1, 40):
        y = linear(weight)(torch.ones(rows, inputs))
        exact = weight.float().sum(1).expand_as(y)
        assert y.shape == (rows, outputs)
        # In 8 bits a weight is off by half of a 255th of a range of about 8.
        assert largest_difference(y, exact) < 2**-6


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("outputs", [576, 960, 1600, 3072, 5120, 16384, 49280])
def test_threads_have_equal_shares_of_a_table(outputs: int, threads: int) -> None:
    columns = kernels.bag_columns(outputs, threads)
    blocks = outputs // columns
    assert outputs % columns == 0 and columns % 16 == 0 and columns <= 384
    assert blocks / (-(-blocks // threads) * threads) >= 0.75


def test_int8_does_not_overflow_float16() -> None:
    linear = kernels.Int8Linear(torch.full((48, 64), 1e-3))
    assert linear(torch.full((40, 64), 1000.0, dtype=torch.float16)).isfinite().all()


def test_loading_draws_no_random_numbers() -> None:
    plain = pair(torch.float32)[0]
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    kernels.specialise(plain)
    assert torch.equal(torch.rand(1), expected)


def test_widened_model_reads_bfloat16_where_memory_is_what_counts() -> None:
    plain, fast = pair(torch.bfloat16, widen=True)
    exact = kernels.specialise(deepcopy(plain).float())
    tiles = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8)
    assert torch.equal(fast.encode_tiles(tiles), exact.encode_tiles(tiles))
    x = torch.randn(1, 40, 64)  # more rows than are a few
    assert torch.equal(fast.text_model(x), exact.text_model(x))
    held = [m for m in fast.modules() if isinstance(m, kernels.NarrowLinear)]
    assert len(held) == 4 * CONFIG.text.num_hidden_layers + 1
    assert all(m.table.dtype == torch.bfloat16 for m in held)
    assert fast.dtype == torch.bfloat16


def test_int8_head_and_decoder_but_not_the_tower() -> None:
    torch.manual_seed(0)
    model = kernels.specialise(SmolVLM(CONFIG).eval().requires_grad_(False), int8=True)
    kept = {
        t.dtype
        for m in model.vision_model.modules()
        for t in vars(m).values()
        if torch.is_tensor(t)
    }
    assert torch.uint8 not in kept
    layers = [m for m in model.modules() if isinstance(m, kernels.Int8Linear)]
    assert len(layers) == 4 * CONFIG.text.num_hidden_layers + 1
    assert model.dtype == torch.float32
    assert model.next_logits(torch.randn(1, 3, 64)).isfinite().all()


@pytest.mark.parametrize("fast", [True, False])
def test_bfloat16_is_widened_where_its_products_are_slow(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "has_fast_bfloat16", lambda device: fast)
    model = kernels.specialise(pair(torch.bfloat16)[0])
    assert model.activation_dtype == (torch.bfloat16 if fast else torch.float32)
