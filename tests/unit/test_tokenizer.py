"""Text out of ids, character by character, and text in that stays text."""

import json
import os
from pathlib import Path

import pytest
from conftest import SPECIALS, save_tokenizer

from argus_cli.errors import ModelDamaged
from argus_cli.smolvlm.prompt import Special
from argus_cli.smolvlm.tokenizer import IncrementalDecoder, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    save_tokenizer(path)
    return Tokenizer(path, 400)


TEXTS = [
    "plain words",
    "naïve café",
    "日本語の看板",
    "👩‍👩‍👧‍👦 family",
    "a\n\nb  c ",
    "\ufffd odd",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_incremental_text_is_whole_and_never_broken(tokenizer: Tokenizer, text: str) -> None:
    decoder = IncrementalDecoder(tokenizer)
    pieces = [decoder.push(token) for token in tokenizer.encode([text])]
    assert "".join(pieces) + decoder.finish() == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in piece for piece in pieces)


def test_unfinished_character_comes_out_at_the_end(tokenizer: Tokenizer) -> None:
    decoder = IncrementalDecoder(tokenizer)
    ids = tokenizer.encode(["日"])
    assert len(ids) > 1
    assert [decoder.push(token) for token in ids[:-1]] == [""] * (len(ids) - 1)
    assert "\ufffd" in decoder.finish()


def test_special_tokens_are_one_id_only_where_the_template_puts_them(tokenizer: Tokenizer) -> None:
    for spelling in SPECIALS:
        assert tokenizer.encode([Special(spelling)]) == [SPECIALS.index(spelling)]
        assert SPECIALS.index(spelling) not in tokenizer.encode([f"x{spelling}y"])
        assert tokenizer.decode(tokenizer.encode([spelling])) == spelling


def test_damaged_or_oversized_tokenizer_is_named(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    with pytest.raises(ModelDamaged, match=r"tokenizer\.json.*missing"):
        Tokenizer(path, 400)
    path.write_text("{}")
    with pytest.raises(ModelDamaged, match=r"tokenizer\.json"):
        Tokenizer(path, 400)
    save_tokenizer(path)
    with pytest.raises(ModelDamaged, match=r"tokens, but config\.json has 100"):
        Tokenizer(path, 100)


def test_a_pipe_is_no_tokenizer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ModelDamaged, match="no file of at most"):
        Tokenizer(tmp_path / "tokenizer.json", 400)


def test_a_token_says_no_more_than_a_line(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    save_tokenizer(path)
    raw = json.loads(path.read_text())
    raw["added_tokens"].append(raw["added_tokens"][0] | {
        "id": 399, "content": "x" * 10**5, "special": False,
    })  # fmt: skip
    path.write_text(json.dumps(raw))
    decoder = IncrementalDecoder(Tokenizer(path, 400))
    [token] = decoder._tokenizer.encode([Special("x" * 10**5)])
    assert len(decoder.push(token) + decoder.push(token)) == 2 * 1024


def test_a_token_beyond_the_embeddings_is_refused(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer_of_less = Tokenizer(tokenizer._path, 400)
    tokenizer_of_less._vocab_size = 100
    with pytest.raises(ModelDamaged, match=r"tokenizer\.json: token \d+ of 100"):
        tokenizer_of_less.encode(["Describe this image."])
