"""What argus costs its user: start-up, a caption from cold, peak memory.

  python scripts/bench.py            on a quiet machine

Commands run in fresh processes, medians of --runs where more than one is said; the last line is
one JSON document.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import av
import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

import argus_cli
from argus_cli.batch import caption_each
from argus_cli.device import available_threads, cpu_flags
from argus_cli.media.reels import opened
from argus_cli.media.sources import resolve
from argus_cli.media.videos import frames, plan_times, probe
from argus_cli.smolvlm.config import read_config
from argus_cli.smolvlm.model import SmolVLM

ARGUS = [sys.executable, "-m", "argus_cli"]
GOLDEN = Path(__file__).parents[1] / "tests/golden"


def measure(words: list[str], runs: int) -> dict[str, float]:
    """Median wall seconds, their spread, and peak memory of a command in fresh processes."""
    seconds, peaks = [], []
    for _ in range(runs):
        start = time.perf_counter()
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
        peak = 0
        while process.poll() is None:
            peak = max(peak, resident_peak(process.pid))
            time.sleep(0.01)
        seconds.append(time.perf_counter() - start)
        peaks.append(peak)
        if process.returncode:
            raise SystemExit(f"{words} failed")
    return {
        "seconds": round(statistics.median(seconds), 3),
        "fastest": round(min(seconds), 3),
        "slowest": round(max(seconds), 3),
        "peak_mb": round(statistics.median(peaks) / 1e6, 1),
    }


def resident_peak(pid: int) -> int:
    """Bytes at most resident so far. (wait4 would count the memory of this process before exec.)"""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def photo_like(path: Path, width: int, height: int) -> Path:
    """A JPEG with structure at every scale, so that it costs what a photo costs."""
    rng = np.random.default_rng(0)
    picture = np.zeros((height, width, 3), np.float32)
    for octave in range(2, 11):
        noise = rng.normal(size=(2**octave * 3 // 4, 2**octave, 3)).astype(np.float32)
        layer = Image.fromarray(np.uint8(noise.clip(-3, 3) * 42 + 128)).resize((width, height))
        picture += (np.asarray(layer, np.float32) - 128) * 2.0 ** (-octave / 2)
    Image.fromarray(np.uint8((picture + 128).clip(0, 255))).save(path, quality=92)
    return path


def random_checkpoint(folder: Path, name: str) -> Path:
    """Seeded weights in a checkpoint's real shapes, bfloat16, as the hub has them."""
    import lzma

    config = read_config(GOLDEN / "hub" / name)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    state = SmolVLM(config.model).state_dict()
    torch.set_default_dtype(torch.float32)
    folder.mkdir()
    prefixed = {n if n.startswith("lm_head") else f"model.{n}": t for n, t in state.items()}
    save_file(prefixed, folder / "model.safetensors")
    for file in (GOLDEN / "hub" / name).glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "tokenizer.json").write_bytes(
        lzma.decompress((GOLDEN / "tokenizer.json.xz").read_bytes())
    )
    return folder


def long_film(path: Path, minutes: int) -> Path:
    """1080p30 h264 of any length: ten seconds are encoded, and their packets repeated."""
    noise = np.random.default_rng(0).integers(0, 256, (14, 24, 3), dtype=np.uint8)
    pixels = np.asarray(Image.fromarray(noise).resize((2400, 1350), Image.Resampling.BICUBIC))
    with av.open(path, "w") as output:
        stream = output.add_stream("libx264", rate=30, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = 1920, 1080, "yuv420p"
        packets = []
        for number in range(300):
            part = np.ascontiguousarray(pixels[number // 2 :, number:][:1080, :1920])
            packets += stream.encode(av.VideoFrame.from_ndarray(part, "rgb24"))
        packets += stream.encode(None)
        times = [(packet.pts, packet.dts) for packet in packets]
        base = packets[0].time_base
        length = round(10 / base)
        for repeat in range(minutes * 6):
            for packet, (pts, dts) in zip(packets, times, strict=True):
                packet.stream, packet.time_base = stream, base  # muxing has changed it
                packet.pts, packet.dts = pts + repeat * length, dts + repeat * length
                output.mux(packet)
    return path


def films(folder: Path) -> dict[str, object]:
    """Memory that doesn't grow with the film, and the gain of seeking over decoding it all."""
    report: dict[str, object] = {}
    for minutes in (10, 120):
        film = long_film(folder / f"{minutes}.mp4", minutes)
        words = [*ARGUS, "video", str(film), "-m", "glimpse", "--no-summary", "-f", "json"]
        report[f"film_of_{minutes}_minutes"] = measure([*words, "--fps", str(1 / 120)], 1)
    hour = long_film(folder / "60.mp4", 60)
    start = time.perf_counter()
    times = plan_times(probe(hour).duration, max_frames=64)
    sampled = sum(1 for _ in frames(hour, times))
    report["sampled_64_frames_seconds"] = round(time.perf_counter() - start, 2)
    start = time.perf_counter()
    with opened(hour) as reel:
        decoded = sum(1 for _ in reel.shots())
    report["all_frames_seconds"] = round(time.perf_counter() - start, 2)
    report["frames"] = [sampled, decoded]
    return report


def folder_run(folder: Path, pictures: int = 200) -> dict[str, float]:
    """How busy the model is in a folder of small photos, and what a picture costs beside it."""
    captioner = argus_cli.load("glimpse")
    folder.mkdir()
    for number in range(pictures):
        photo_like(folder / f"{number}.jpg", 640 - number, 480)
    sources = resolve([str(folder)])
    list(caption_each(captioner, sources[:8], argus_cli.Request()))
    start = time.perf_counter()
    results = list(caption_each(captioner, sources, argus_cli.Request()))
    wall = time.perf_counter() - start
    phases = [r.seconds for r in results if isinstance(r, argus_cli.Caption)]
    model = sum(s.vision + s.prefill + s.generate for s in phases)
    return {
        "pictures": len(phases),
        "pictures_per_second": round(len(phases) / wall, 2),
        "model_busy": round(model / wall, 3),
        "other_ms_a_picture": round((wall - model) / len(phases) * 1e3, 2),
        "decode_and_preprocess_ms": round(
            statistics.median(s.decode + s.preprocess for s in phases) * 1e3, 2
        ),
    }


def cluster_run(folder: Path, pictures: int = 600) -> dict[str, float]:
    """One actor with all of this machine's CPUs beside the plain command, without their start-up.

    Both caption a folder of so many and one of a tenth, each in a fresh process: what the larger
    takes longer is the work alone.
    """
    words = [*ARGUS, "caption", "-m", "glimpse", "-q"]
    seconds: dict[str, list[float]] = {"plain": [], "ray": []}
    for count in (pictures // 10, pictures):
        some = folder / str(count)
        some.mkdir(parents=True)
        for number in range(count):
            photo_like(some / f"{number}.jpg", 640 - number % 64, 480)
        ray = ["--ray", "local", "-o", str(folder / f"parts-{count}")]
        plain = ["-o", str(folder / f"{count}.jsonl")]
        for name, output in (("plain", plain), ("ray", ray)):
            start = time.perf_counter()
            subprocess.run([*words, str(some), *output], check=True)
            seconds[name].append(time.perf_counter() - start)
    rates = {name: 0.9 * pictures / (many - few) for name, (few, many) in seconds.items()}
    return {
        "pictures_per_second_plain": round(rates["plain"], 2),
        "pictures_per_second_ray": round(rates["ray"], 2),
        "ratio": round(rates["ray"] / rates["plain"], 3),
        "ray_start_up_seconds": round(seconds["ray"][0] - seconds["plain"][0], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--films", action="store_true", help="long films too (minutes)")
    parser.add_argument("--ray", action="store_true", help="the same folder on Ray too")
    options = parser.parse_args()
    report: dict[str, object] = {
        "machine": platform.machine(),
        "threads": available_threads(),
        "matrix_extensions": sorted(
            cpu_flags() & {"avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16"}
        ),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photo = photo_like(folder / "photo.jpg", 4000, 3000)
        small = random_checkpoint(folder / "smolvlm-256m-shapes", "SmolVLM-256M-Instruct")
        caption = [*ARGUS, "caption", str(photo), "-f", "json"]
        cases = {
            "help": [*ARGUS, "--help"],
            "glimpse_12mp": [*caption, "-m", "glimpse"],
            "smolvlm_256m_bfloat16_13_tiles": [
                *caption, "-m", str(small), "--dtype", "bfloat16", "--max-new-tokens", "16",
            ],
        }  # fmt: skip
        for case, words in cases.items():
            report[case] = measure(words, options.runs if "256m" not in case else 1)
            print(case, report[case], flush=True)
        done = subprocess.run([*caption, "-m", "glimpse"], capture_output=True, check=True)
        small_photo = Image.new("RGB", (64, 64))
        small_photo.save(folder / "small.png")
        words = [*ARGUS, "caption", str(folder / "small.png"), "-m", "glimpse"]
        report["glimpse_small"] = measure(words, options.runs)
        report["folder_of_200_photos"] = folder_run(folder / "photos")
        print("folder", report["folder_of_200_photos"], flush=True)
        if options.ray:
            report["folder_on_ray"] = cluster_run(folder / "cluster")
            print("ray", report["folder_on_ray"], flush=True)
        if options.films:
            report |= films(folder)
        report["glimpse_12mp_phases"] = json.loads(done.stdout)["seconds"]
    print(json.dumps(report))


if __name__ == "__main__":
    main()
