"""From frames to segments, on the tiny model: what is looked at, asked and reused."""

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import TINY, draw
from PIL import Image

import argus_cli
from argus_cli.captioner import film
from argus_cli.errors import PromptTooLong
from argus_cli.schema import Frame

SAMPLING = argus_cli.Sampling(6)


@pytest.fixture(scope="module", params=["smolvlm", "idefics3", "glimpse"])
def captioner(
    request: pytest.FixtureRequest, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> argus_cli.Captioner:
    """The tiny model under the three kinds: reads films, sees pictures, only captions."""
    folder = Path(shutil.copytree(tiny_folder, tmp_path_factory.mktemp("zoo") / request.param))
    config = copy.deepcopy(TINY) | {"model_type": request.param}
    (folder / "config.json").write_text(json.dumps(config))
    return argus_cli.load(folder, dtype="float32")


def play(monkeypatch: pytest.MonkeyPatch, pictures: list[Image.Image], fps: float = 1.0) -> None:
    """A film of these pictures, without a file."""
    duration = len(pictures) / fps
    info = SimpleNamespace(duration=duration, width=90, height=60, fps=fps)

    def frames(source: object, times: list[float]) -> Iterator[tuple[Frame, Image.Image]]:
        for index in sorted({min(int(time * fps), len(pictures) - 1) for time in times}):
            yield Frame(index / fps, index), pictures[index]

    monkeypatch.setattr(film, "probe", lambda source: info)
    monkeypatch.setattr(film, "frames", frames)
    monkeypatch.setattr(film, "scene_cuts", lambda source, start, end: [4.0, 9.0])


def moving(number: int) -> list[Image.Image]:
    return [draw(90, 60, seed) for seed in range(number)]


def test_windows_cover_the_film(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    play(monkeypatch, moving(25))
    result = captioner.video("clip.mp4", sampling=SAMPLING, summary=False, window=5)
    assert (result.path, result.duration, result.summary) == ("clip.mp4", 25.0, None)
    assert result.segments[0].start == 0 and result.segments[-1].end == 25
    for before, after in zip(result.segments, result.segments[1:], strict=False):
        assert before.end == after.start and before.caption != after.caption
    assert [frame.time for frame in result.frames] == sorted({f.time for f in result.frames})
    assert len(result.frames) == 25 and result.frames_reused == 0


def test_still_stretches_cost_one_pass_of_the_tower(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    still, other = moving(2)
    noisy = still.point(lambda level: min(level + 1, 255))  # what compression does
    play(monkeypatch, [still, noisy, still, other, other, still])
    passes = []
    encode = captioner.model.encode_tiles

    def counted(tiles: torch.Tensor) -> torch.Tensor:
        passes.append(len(tiles))
        return encode(tiles)

    monkeypatch.setattr(captioner.model, "encode_tiles", counted)
    result = captioner.video("clip.mp4", sampling=SAMPLING, summary=False)
    assert passes == [1, 1, 1]
    assert result.frames_reused == 3 and len(result.frames) == 6


def test_a_slow_fade_is_not_still(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    """Each frame is compared with the one whose features it would take, not with its neighbour."""
    play(monkeypatch, [Image.new("RGB", (90, 60), (level,) * 3) for level in range(0, 40, 2)])
    result = captioner.video("clip.mp4", sampling=SAMPLING, summary=False)
    assert result.frames_reused == 10  # every other one: +2 is reused, +4 is not


def test_scenes_are_segments_with_frames_of_their_own(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    play(monkeypatch, moving(12))
    result = captioner.video(
        "clip.mp4", sampling=SAMPLING, summary=False, scenes=True, max_frames=4
    )
    ends = {segment.end for segment in result.segments}
    assert ends <= {4.0, 9.0, 12.0} and result.segments[-1].end == 12
    times = [frame.time for frame in result.frames]
    assert len(times) <= 4
    for start, end in ((0, 4), (4, 9), (9, 12)):
        assert any(start <= time < end for time in times)


def test_the_model_is_asked_as_it_was_trained(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    play(monkeypatch, moving(3))
    prompts = []
    encode = captioner.tokenizer.encode
    monkeypatch.setattr(
        captioner.tokenizer,
        "encode",
        lambda pieces: prompts.append("".join(pieces := list(pieces))) or encode(pieces),
    )
    captioner.video("clip.mp4", sampling=SAMPLING, summary=False, prompt="What now?")
    prompts.pop(0)  # the check for room
    if captioner.config.model.reads_video:
        [prompt] = prompts
        assert "following series of three frames from a 0:00:03 [H:MM:SS] video" in prompt
        assert prompt.count("Frame from 00:0") == 3 and "What now?" in prompt
    else:
        assert len(prompts) == 3
        assert all("What now?" in prompt and "Frame" not in prompt for prompt in prompts)


def test_summary_comes_from_the_segments(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    play(monkeypatch, moving(20))
    asked = []
    ids = captioner.prompt_ids
    monkeypatch.setattr(
        captioner,
        "prompt_ids",
        lambda parts, system=None: asked.append(parts) or ids(parts, system),
    )
    result = captioner.video("clip.mp4", sampling=SAMPLING, window=10, prompt="x")
    first = result.segments[0].caption
    if captioner.config.model.captions_only:
        assert result.summary.startswith(first.rstrip("."))
    else:
        question = asked[-1][-1]
        assert "Summarize the whole video" in question
        assert str(result.segments[0]) in question


def test_too_many_frames_for_the_context_are_refused_first(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    if not captioner.config.model.reads_video:
        pytest.skip("sees one frame at a time")
    play(monkeypatch, moving(100))
    monkeypatch.setattr(captioner.model, "encode_tiles", None)  # must not be reached
    with pytest.raises(PromptTooLong, match=r"clip\.mp4: the prompt takes .* or frames"):
        captioner.video("clip.mp4", window=100, max_frames=100)


def test_segments_stream_and_frames_are_shown(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    play(monkeypatch, moving(12))
    stream = captioner.segments("clip.mp4", sampling=SAMPLING, window=4, summary=False)
    seen = []
    stream.on_frame = lambda frame, picture: seen.append((frame.time, picture.size))
    found = list(stream)
    assert tuple(found) == stream.result.segments
    assert [time for time, _ in seen] == [float(n) for n in range(12)]
    assert stream.length == 12 and stream.progress == 11


def test_summary_of_a_long_film_keeps_what_fits(monkeypatch, captioner) -> None:  # type: ignore[no-untyped-def]
    """Down to a single segment and frame before it is given up."""
    if captioner.config.model.captions_only:
        pytest.skip("its summary is no prompt")
    play(monkeypatch, moving(12))
    monkeypatch.setattr(film, "merge", iter)  # random weights may say the same of every window
    room, asked = captioner.check_room, []
    ids = captioner.prompt_ids
    monkeypatch.setattr(
        captioner,
        "prompt_ids",
        lambda parts, system=None: asked.append(parts) or ids(parts, system),
    )

    def crowded(*words: object) -> None:
        if str(asked[-1][-1]).count("[00:") > 1:
            raise PromptTooLong("too long")
        room(*words)

    monkeypatch.setattr(captioner, "check_room", crowded)
    result = captioner.video("clip.mp4", sampling=SAMPLING, window=2)
    assert len(result.segments) == 6 and result.summary is not None
    assert asked[-1][-1].count("[00:") == 1
