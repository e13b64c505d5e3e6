"""argus beside what else runs SmolVLM on this CPU: same weights, same tiles, same threads.

  python scripts/rivals.py --model SmolVLM-256M-Instruct --dtype float32     on a quiet machine

Seeded random weights in the checkpoint's real shapes. The rivals take turns, round by round, in
one process; figures are medians over the rounds, ratios (rival / argus) are taken within a round.
transformers is a development dependency; OpenVINO and ONNX Runtime (the tower alone, the latter in
float32) run when they are installed: pip install openvino onnxruntime onnx.
Then a caption of one token from cold, in processes of their own, with their peak memory. The last
line is one JSON document.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from bench import measure, random_checkpoint
from torch import Tensor

from argus_cli.device import DTYPES, available_threads, cpu_flags
from argus_cli.generation import generate
from argus_cli.schema import Sampling
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import read_config
from argus_cli.smolvlm.prompt import Message, chat
from argus_cli.smolvlm.tiling import plan_tiles
from argus_cli.smolvlm.tokenizer import Tokenizer
from argus_cli.smolvlm.weights import load_model

PREFILL, TILES_AT_ONCE, COLD_RUNS = 1128, 4, 3
DECODER = ("prefill", "token")
Rival = dict[str, Callable[[], object]]


class Material:
    """What every rival gets: a checkpoint, tiles, a prompt. Loads no weights itself."""

    def __init__(self, folder: Path, dtype: str, tokens: int):
        self.folder, self.tokens = folder, tokens
        self.dtype = DTYPES[dtype]
        self.config = read_config(folder)
        torch.manual_seed(0)
        grid = plan_tiles((2048, 2048), self.config.preprocess, "full")
        self.tiles = torch.randint(0, 256, (grid.tiles, grid.tile, grid.tile, 3), dtype=torch.uint8)
        tokenizer = Tokenizer(folder / "tokenizer.json", self.config.model.text.vocab_size)
        message = Message("user", (grid, "Can you describe this image?"))
        self.ids = tokenizer.encode(chat([message], self.config.model.tokens_per_tile))
        width = self.config.model.text.hidden_size
        self.embedded = torch.randn(1, PREFILL, width).to(self.dtype) * 0.1


def argus(given: Material, *, int8: bool = False) -> Rival:
    config = given.config.model
    model = load_model(given.folder, config, dtype=given.dtype, int8=int8)
    embedded = given.embedded.to(model.activation_dtype)
    state: dict[str, KVCache] = {}

    def prefill() -> Tensor:
        state["cache"] = KVCache(config.text, 1, PREFILL + 64, dtype=model.activation_dtype)
        return model.next_logits(embedded, state["cache"])

    def token() -> Tensor:
        return model.next_logits(embedded[:, :1], state["cache"])

    def caption() -> list[int]:
        features = model.encode_tiles(given.tiles)
        x = model.embed(torch.tensor([given.ids]), features)
        cache = KVCache(config.text, 1, len(given.ids) + given.tokens, dtype=model.activation_dtype)
        steps = generate(model, x, cache, Sampling(max_new_tokens=given.tokens))
        return [step.token for step in steps]

    return {
        "tower": lambda: model.encode_tiles(given.tiles[:TILES_AT_ONCE]),
        "prefill": prefill,
        "token": token,
        "caption": caption,
    }


def argus_int8(given: Material) -> Rival:
    """The decoder alone: what differs."""
    return {stage: run for stage, run in argus(given, int8=True).items() if stage in DECODER}


def transformers(given: Material) -> Rival:
    from transformers import AutoModelForImageTextToText, DynamicCache

    model = AutoModelForImageTextToText.from_pretrained(given.folder, dtype=given.dtype).eval()
    pixels = given.tiles.permute(0, 3, 1, 2).float().div(127.5).sub(1).to(given.dtype)[None]
    mask = torch.ones(1, len(given.tiles), *given.tiles.shape[1:3], dtype=torch.bool)
    state: dict[str, DynamicCache] = {}

    def decode(x: Tensor) -> Tensor:
        hidden = model.model.text_model(inputs_embeds=x, past_key_values=state["cache"])
        return model.lm_head(hidden.last_hidden_state[:, -1]).float()  # type: ignore[no-any-return]

    def prefill() -> Tensor:
        state["cache"] = DynamicCache()
        return decode(given.embedded)

    def caption() -> list[int]:
        ids = torch.tensor([given.ids])
        answer = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values=pixels,
            pixel_attention_mask=mask, do_sample=False, repetition_penalty=1.0,
            min_new_tokens=given.tokens, max_new_tokens=given.tokens,
        )  # fmt: skip
        return answer[0, len(given.ids) :].tolist()  # type: ignore[no-any-return]

    def tower() -> Tensor:
        part = slice(0, TILES_AT_ONCE)
        return model.model.get_image_features(pixels[:, part], mask[:, part])  # type: ignore[no-any-return]

    return {
        "tower": tower,
        "prefill": prefill,
        "token": lambda: decode(given.embedded[:, :1]),
        "caption": caption,
    }


class Tower(torch.nn.Module):
    """Our plain modules, for others to convert."""

    def __init__(self, given: Material):
        super().__init__()
        self.model = load_model(given.folder, given.config.model, dtype=torch.float32, fast=False)

    def forward(self, tiles: Tensor) -> Tensor:
        return self.model.connector(self.model.vision_model(tiles))  # type: ignore[no-any-return]


def openvino(given: Material) -> Rival:
    """The tower alone, its products in the wanted number type."""
    import openvino as ov

    tiles = given.tiles[:TILES_AT_ONCE]
    converted = ov.convert_model(Tower(given), example_input=tiles)
    precision = {torch.float32: "f32", torch.bfloat16: "bf16"}[given.dtype]
    compiled = ov.Core().compile_model(
        converted,
        "CPU",
        {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        },
    )
    request = compiled.create_infer_request()
    array = tiles.numpy()
    return {"tower": lambda: request.infer([array])}


def onnxruntime(given: Material) -> Rival:
    """The tower alone, tile by tile."""
    import onnx  # noqa: F401  what torch exports with
    import onnxruntime as ort

    if given.dtype != torch.float32:
        raise ImportError("its CPU kernels multiply no bfloat16")
    tiles = given.tiles[:TILES_AT_ONCE]
    file = str(given.folder / "tower.onnx")
    torch.onnx.export(Tower(given), (tiles[:1],), file, dynamo=False, opset_version=20)
    options = ort.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    [name] = (entry.name for entry in session.get_inputs())
    return {"tower": lambda: [session.run(None, {name: tile[None].numpy()}) for tile in tiles]}


RIVALS = {
    "argus": argus,
    "argus-int8": argus_int8,
    "transformers": transformers,
    "openvino": openvino,
    "onnxruntime": onnxruntime,
}
UNITS = {"tower": TILES_AT_ONCE}  # milliseconds a tile


def take_turns(rivals: dict[str, Rival], rounds: int) -> dict[str, dict[str, list[float]]]:
    """stage -> rival -> milliseconds of each round, after one round of warming up."""
    times: dict[str, dict[str, list[float]]] = {}
    for stage in ("tower", "prefill", "token", "caption"):
        taking = {name: rival[stage] for name, rival in rivals.items() if stage in rival}
        repeats = 16 if stage == "token" else 1
        for number in range(rounds + (stage != "caption")):
            for name, run in taking.items():
                if stage == "token":  # both caches hold the same number of positions
                    rivals[name]["prefill"]()
                start = time.perf_counter()
                for _ in range(repeats):
                    run()
                passed = (time.perf_counter() - start) * 1e3 / repeats / UNITS.get(stage, 1)
                if number or stage == "caption":
                    times.setdefault(stage, {}).setdefault(name, []).append(passed)
        print(stage, {name: round(statistics.median(v), 1) for name, v in times[stage].items()})
    return times


def summary(times: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    report: dict[str, object] = {}
    for stage, by_rival in times.items():
        entry = {f"{name}_ms": round(statistics.median(v), 2) for name, v in by_rival.items()}
        for name in by_rival.keys() - {"argus"}:
            ratios = [a / b for a, b in zip(by_rival[name], by_rival["argus"], strict=True)]
            entry |= {
                f"{name}_ratio": round(statistics.median(ratios), 3),
                f"{name}_ratio_spread": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        report[stage] = entry
    return report


CHILD = """
import sys, torch
from pathlib import Path
sys.path.insert(0, {scripts!r})
import rivals
torch.set_grad_enabled(False)
torch.set_num_threads({threads})
given = rivals.Material(Path({folder!r}), {dtype!r}, 1)
rivals.RIVALS[{name!r}](given)["caption"]()
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="SmolVLM-256M-Instruct")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="of the whole caption")
    parser.add_argument("--rivals", default=",".join(RIVALS))
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    torch.set_num_threads(available_threads())
    report: dict[str, object] = {
        "model": options.model, "dtype": options.dtype, "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "matrix_extensions": sorted(cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "amx_bf16"}),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = random_checkpoint(Path(name) / "model", options.model)
        given = Material(folder, options.dtype, options.tokens)
        rivals = {}
        for rival in options.rivals.split(","):
            try:
                rivals[rival] = RIVALS[rival](given)
            except ImportError as error:
                print(f"{rival} left out: {error}")
        report |= summary(take_turns(rivals, options.rounds))
        answers = {n: rival["caption"]() for n, rival in rivals.items() if "caption" in rival}
        report["same_answer"] = len({tuple(answer) for answer in answers.values()}) == 1
        names = list(answers)
        del given, rivals
        cold: dict[str, list[dict[str, float]]] = {name: [] for name in names}
        for _ in range(COLD_RUNS):
            for name in names:
                child = CHILD.format(
                    scripts=str(Path(__file__).parent), folder=str(folder), dtype=options.dtype,
                    threads=torch.get_num_threads(), name=name,
                )  # fmt: skip
                cold[name].append(measure([sys.executable, "-c", child], 1))
        for name, runs in cold.items():
            report[f"{name}_from_cold"] = {
                key: statistics.median(run[key] for run in runs) for key in ("seconds", "peak_mb")
            }
    print(json.dumps(report))
    if options.dtype == "float32" and not report["same_answer"]:
        raise SystemExit("the rivals' answers differ")


if __name__ == "__main__":
    main()
