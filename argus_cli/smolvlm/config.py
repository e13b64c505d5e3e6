"""The checkpoint's JSON files as nested, frozen configurations. Knows nothing of tensors.

What the checkpoint decides has no default here, except the fields that SmolVLM2's config.json
leaves out: those are filled with the reference's class defaults (transformers 5.24
SmolVLMVisionConfig and LlamaConfig), listed in one table each. Keys that change nothing are
ignored; a key that would change the result and that argus doesn't implement is refused.
"""

import json
import math
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from argus_cli.errors import ModelDamaged

_MODEL_TYPES = ("idefics3", "smolvlm", "glimpse")

_VISION_DEFAULTS: dict[str, Any] = {
    "num_hidden_layers": 12,
    "intermediate_size": 3072,
    "num_channels": 3,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
_TEXT_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}

# Values other than these would need code that argus doesn't have.
_VISION_ONLY = {"hidden_act": "gelu_pytorch_tanh", "num_channels": 3}
_TEXT_ONLY = {
    "hidden_act": "silu",
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "qk_layer_norms": False,
    "rope_interleaved": False,
    "use_resampler": False,
}
_PREPROCESS_ONLY = {
    "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3,
    "resample": 1,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
}

# No model comes near these. What a stranger's file claims is refused before anything of that size
# is made.
_MOST = {"num_hidden_layers": 256, "blocks": 64, "repeats": 64, "image_size": 4096}
_MOST_ELSEWHERE = 2**20
_MOST_TOKENS = 4096  # of a tile
_MOST_TILES = 16  # on a side
_LARGEST_JSON = 64 * 2**20  # bytes


@dataclass(frozen=True)
class StemBlock:
    """``repeats`` inverted-residual blocks; the first has ``stride`` and changes the width."""

    repeats: int
    kernel_size: int
    stride: int
    expand_ratio: int
    out_channels: int


@dataclass(frozen=True)
class StemConfig:
    """A convolutional stem: first convolution, blocks, closing 1x1 convolution."""

    first_channels: int
    blocks: tuple[StemBlock, ...]
    last_channels: int


@dataclass(frozen=True)
class VisionConfig:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    image_size: int
    patch_size: int
    layer_norm_eps: float
    stem: StemConfig | None

    @property
    def grid(self) -> int:
        """Patches per side of a tile; what is left over at the right and bottom is ignored."""
        return self.image_size // self.patch_size

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class TextConfig:
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    max_position_embeddings: int
    rope_theta: float
    rms_norm_eps: float


@dataclass(frozen=True)
class ModelConfig:
    model_type: str
    vision: VisionConfig
    text: TextConfig
    scale_factor: int
    image_token_id: int
    tie_word_embeddings: bool

    @property
    def tokens_per_tile(self) -> int:
        return (self.vision.grid // self.scale_factor) ** 2

    @property
    def reads_video(self) -> bool:
        """SmolVLM2 was trained on frames with time stamps; the others see single pictures."""
        return self.model_type == "smolvlm"

    @property
    def captions_only(self) -> bool:
        """glimpse has learnt to caption, not to follow instructions."""
        return self.model_type == "glimpse"


@dataclass(frozen=True)
class PreprocessConfig:
    tile: int
    longest_edge: int
    split: bool


class Calibration(NamedTuple):
    """How often a model is right, as a logistic of its mean log-probability (Platt 1999)."""

    slope: float
    offset: float

    def log_probability(self, mean: float) -> float:
        """That an answer whose tokens have the mean log-probability ``mean`` is right."""
        odds = self.slope * mean + self.offset
        return min(odds, 0.0) - math.log1p(math.exp(-abs(odds)))


@dataclass(frozen=True)
class CheckpointConfig:
    """Everything that a model folder's JSON files say, apart from the tokenizer."""

    model: ModelConfig
    preprocess: PreprocessConfig
    eos_token_ids: tuple[int, ...]
    calibration: Calibration | None = None  # none of the hub's checkpoints has one


def read_config(folder: Path) -> CheckpointConfig:
    """Read config.json, preprocessor_config.json and generation_config.json of ``folder``.

    Raises ModelDamaged, naming the file and the key, for anything that argus can't honour.
    """
    preprocess = read_json(folder / "preprocessor_config.json")
    generation = read_json(folder / "generation_config.json")
    path = folder / "config.json"
    try:
        model = parse_model(read_json(path))
        path = folder / "preprocessor_config.json"
        tiles = parse_preprocess(preprocess)
        path = folder / "generation_config.json"
        eos = parse_eos(generation["eos_token_id"])
        calibration = parse_calibration(generation.get("calibration"))
    except KeyError as error:
        raise ModelDamaged(f"{path}: the key {error} is missing") from None
    except (ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise ModelDamaged(f"{path}: {error}") from None
    if tiles.tile != model.vision.image_size:
        raise ModelDamaged(
            f"{folder / 'preprocessor_config.json'}: tiles of {tiles.tile} px, but "
            f"config.json's vision_config.image_size is {model.vision.image_size}"
        )
    return CheckpointConfig(model, tiles, eos, calibration)


def parse_model(raw: dict[str, Any]) -> ModelConfig:
    """config.json -> ModelConfig. Raises KeyError or ValueError."""
    if raw["model_type"] not in _MODEL_TYPES:
        raise ValueError(
            f"model_type {raw['model_type']!r} is not one of {', '.join(_MODEL_TYPES)}"
        )
    config = ModelConfig(
        model_type=raw["model_type"],
        vision=_parse_vision(raw["vision_config"]),
        text=_parse_text(raw["text_config"]),
        scale_factor=_number("scale_factor", raw["scale_factor"]),
        image_token_id=raw["image_token_id"],
        tie_word_embeddings=raw["tie_word_embeddings"],
    )
    vision, text = config.vision, config.text
    for what, size, parts in (
        ("vision_config.hidden_size", vision.hidden_size, vision.num_attention_heads),
        ("num_attention_heads", text.num_attention_heads, text.num_key_value_heads),
        ("head_dim", text.head_dim, 2),
    ):
        if size % parts:
            raise ValueError(f"{what} {size} can't be divided by {parts}")
    if not config.vision.grid or config.vision.grid % config.scale_factor:
        raise ValueError(
            f"scale_factor {config.scale_factor} doesn't divide the "
            f"{config.vision.grid}x{config.vision.grid} patches of a tile"
        )
    if config.tokens_per_tile > _MOST_TOKENS:
        raise ValueError(f"a tile of {config.tokens_per_tile} tokens, {_MOST_TOKENS} at most")
    return config


def _parse_vision(raw: dict[str, Any]) -> VisionConfig:
    raw = _VISION_DEFAULTS | raw
    _refuse_others(raw, _VISION_ONLY)
    stem = raw.get("stem")
    return VisionConfig(
        stem=None if stem is None else _parse_stem(stem),
        **_take(VisionConfig, raw, without="stem"),
    )


def _parse_stem(raw: dict[str, Any]) -> StemConfig:
    _number("blocks", len(raw["blocks"]))
    blocks = tuple(StemBlock(**_take(StemBlock, block)) for block in raw["blocks"])
    return StemConfig(blocks=blocks, **_take(StemConfig, raw, without="blocks"))


def _parse_text(raw: dict[str, Any]) -> TextConfig:
    raw = _TEXT_DEFAULTS | raw
    _refuse_others(raw, _TEXT_ONLY)
    raw.setdefault("num_key_value_heads", raw["num_attention_heads"])
    # transformers 5 writes the rotary parameters as a table of their own.
    rope = raw.get("rope_parameters") or {"rope_theta": raw.get("rope_theta")}
    if rope.get("rope_type", "default") != "default":
        raise ValueError(f"rope_type {rope['rope_type']!r} is not supported")
    if rope.get("rope_theta") is None:
        raise KeyError("rope_theta")
    return TextConfig(**_take(TextConfig, raw | {"rope_theta": rope["rope_theta"]}))


def parse_preprocess(raw: dict[str, Any]) -> PreprocessConfig:
    """preprocessor_config.json -> PreprocessConfig. Raises KeyError or ValueError."""
    _refuse_others(raw, _PREPROCESS_ONLY)
    tile = _number("max_image_size", raw["max_image_size"]["longest_edge"])
    edge = _number("size", raw["size"]["longest_edge"])
    if edge > _MOST_TILES * tile:
        raise ValueError(f"size is {edge}, more than {_MOST_TILES} tiles of {tile}")
    return PreprocessConfig(tile, edge, split=raw["do_image_splitting"])


def parse_eos(raw: Any) -> tuple[int, ...]:
    """generation_config.json's eos_token_id, one or a list -> ids. Raises ValueError."""
    ids = raw if isinstance(raw, list) else [raw]
    if not all(isinstance(token, int) for token in ids):
        raise ValueError(f"eos_token_id is {raw!r}, numbers were expected")
    return tuple(ids)


def parse_calibration(raw: Any) -> Calibration | None:
    """generation_config.json's calibration, a key of ours. Raises KeyError or ValueError."""
    if raw is None:
        return None
    slope, offset = raw["slope"], raw["offset"]
    if not isinstance(offset, int | float) or not abs(offset) < math.inf:
        raise ValueError(f"calibration.offset is {offset!r}, a number was expected")
    return Calibration(_number("calibration.slope", slope, float), float(offset))


def _take(kind: type, raw: dict[str, Any], without: str = "") -> dict[str, Any]:
    """The fields of ``kind`` out of ``raw``, checked against their annotated number type."""
    fields = {name: of for name, of in kind.__annotations__.items() if name != without}
    return {name: _number(name, raw[name], of) for name, of in fields.items()}


def _number(name: str, value: Any, of: type = int) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 < value < math.inf or of(value) != value:
        raise ValueError(f"{name} is {value!r}, a positive number was expected")
    if of is int and value > (most := _MOST.get(name, _MOST_ELSEWHERE)):
        raise ValueError(f"{name} is {value}, {most} at most")
    return of(value)


def _refuse_others(raw: dict[str, Any], only: dict[str, Any]) -> None:
    for key, value in only.items():
        if raw.get(key, value) != value:
            raise ValueError(f"{key} = {raw[key]!r} is not supported, only {value!r}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of the model. Raises ModelDamaged, naming the file."""
    try:
        check_file(path, _LARGEST_JSON)
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelDamaged(f"{path}: missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelDamaged(f"{path}: unreadable ({error})") from None
    if not isinstance(raw, dict):
        raise ModelDamaged(f"{path}: not a JSON object")
    return raw


def check_file(path: Path, most: int) -> None:
    """Raise OSError for what is no file of at most so many bytes: a pipe, a device, a bomb."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode) or info.st_size > most:
        raise OSError(f"no file of at most {most / 1e6:.0f} MB")
