"""The film prompt against transformers' SmolVLM processor: text, and so ids."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from argus_cli.schema import TileGrid
from argus_cli.smolvlm.prompt import Message, chat, film_parts, in_words
from argus_cli.smolvlm.tokenizer import Tokenizer

pytest.importorskip("transformers", reason="the reference, a development dependency")
GRID = TileGrid(0, 0, 512, (2048, 1152), (512, 512))


def reference(times: list[float], duration: float) -> str:
    from transformers.models.smolvlm.processing_smolvlm import SmolVLMProcessor

    processor = SimpleNamespace(
        image_seq_len=64, image_token="<image>", global_image_token="<global-img>",
        fake_image_token="<fake_token_around_image>",
    )  # fmt: skip
    video = {
        "pixel_values": SimpleNamespace(shape=(1, len(times))),
        "video_metadata": [SimpleNamespace(fps=24, timestamps=times, duration=duration)],
    }
    return SmolVLMProcessor.replace_video_token(processor, video, 0)


def template(video: str, question: str) -> str:
    import jinja2
    from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE

    content = [{"type": "video"}, {"type": "text", "text": question}]
    text = jinja2.Template(DEFAULT_CHAT_TEMPLATE).render(
        messages=[{"role": "user", "content": content}], add_generation_prompt=True
    )
    return text.replace("<video>", video)


@pytest.mark.parametrize(
    ("times", "duration"),
    [
        ([0.0], 0.04),
        ([0, 1, 2, 3, 4, 5, 6, 8, 9], 9.6),  # the published example
        ([index * 1.5 for index in range(64)], 96.0),
        ([0.0, 3599.9, 3600.0, 7261.5], 7262.2),  # over an hour: minutes go beyond 59
    ],
)
def test_text_equals_the_reference(times: list[float], duration: float) -> None:
    pieces = chat([Message("user", (*film_parts(times, duration, GRID), "What happens?"))], 64)
    assert "".join(pieces) == template(reference(times, duration), "What happens?")


@pytest.mark.parametrize("number", [1, 9, 64])
def test_ids_equal_those_of_the_whole_text(number: int, tmp_path: Path) -> None:
    """Piece by piece as argus does, or all at once with special tokens as the reference does."""
    import lzma

    from tokenizers import Tokenizer as Whole

    path = tmp_path / "tokenizer.json"
    packed = Path(__file__).parents[1] / "golden" / "tokenizer.json.xz"
    path.write_bytes(lzma.decompress(packed.read_bytes()))
    times = [index * 70.0 for index in range(number)]
    parts = (*film_parts(times, number * 70.0, GRID), "What happens?")
    text = template(reference(times, number * 70.0), "What happens?")
    ids = Tokenizer(path, 49280).encode(chat([Message("user", parts)], 64))
    assert ids == Whole.from_file(str(path)).encode(text, add_special_tokens=False).ids


def test_numbers_in_words() -> None:
    num2words = pytest.importorskip("num2words").num2words
    assert [in_words(n) for n in range(1, 1000)] == [num2words(n) for n in range(1, 1000)]
