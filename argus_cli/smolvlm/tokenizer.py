"""tokenizer.json behind three functions: pieces to ids, ids to text, text as it grows."""

from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer as _Tokenizer

from argus_cli.errors import ModelDamaged
from argus_cli.smolvlm.config import check_file
from argus_cli.smolvlm.prompt import Piece, Special

_LARGEST = 128 * 2**20  # bytes of a tokenizer.json
_LONGEST = 1024  # characters that one token may give; the longest in use have some hundred


class Tokenizer:
    """The checkpoint's tokenizer. Raises ModelDamaged when it doesn't fit ``vocab_size`` rows."""

    def __init__(self, path: Path, vocab_size: int):
        try:
            check_file(path, _LARGEST)
            self._inner = _Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ModelDamaged(f"{path}: missing or damaged ({error})") from None
        # Ordinary text never becomes a special token: their spellings are encoded piece by piece.
        self._inner.encode_special_tokens = True
        if (tokens := self._inner.get_vocab_size()) > vocab_size:
            raise ModelDamaged(f"{path}: {tokens} tokens, but config.json has {vocab_size}")
        self._path, self._vocab_size = path, vocab_size

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """Ids of text and special tokens in turn."""
        ids: list[int] = []
        for piece in pieces:
            known = self._inner.token_to_id(piece) if isinstance(piece, Special) else None
            # A checkpoint without, say, <row_1_col_1> spells it as text (SmolVLM-Instruct 2.2B).
            ids += [known] if known is not None else self._text(piece)
        if (largest := max(ids, default=0)) >= self._vocab_size:
            raise ModelDamaged(f"{self._path}: token {largest} of {self._vocab_size}")
        return ids

    def _text(self, text: str) -> list[int]:
        return self._inner.encode(text, add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text of ids; special tokens vanish."""
        return self._inner.decode(ids, skip_special_tokens=True)


class IncrementalDecoder:
    """Text piece by piece: a character is given out once all its bytes are there."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """The text that ``token`` completes, perhaps none."""
        self._pending.append(token)
        text = self._tokenizer.decode(self._pending)
        if text.endswith("\ufffd"):  # an unfinished character decodes to the replacement
            return ""
        text = text[: _LONGEST * len(self._pending)]
        self._pending.clear()  # a byte-level token doesn't depend on the ones before it
        return text

    def finish(self) -> str:
        """What is left, an unfinished character as the replacement character."""
        text = self._tokenizer.decode(self._pending)
        self._pending.clear()
        return text
