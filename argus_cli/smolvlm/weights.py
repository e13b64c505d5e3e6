"""safetensors files -> a model: names as in the checkpoint, strict, memory-mapped.

Nothing but safetensors is read: a pickle can run code. The model is built without storage and
every tensor is assigned, so a tensor that already has the wanted dtype stays in the mapped file.
"""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.overrides import TorchFunctionMode

from argus_cli.errors import ModelDamaged
from argus_cli.smolvlm.config import ModelConfig, read_json
from argus_cli.smolvlm.kernels import specialise
from argus_cli.smolvlm.model import SmolVLM

_LARGE = 1 << 18  # elements
_PLAIN = re.compile(r"\w[\w.-]*\.safetensors")  # the name of a shard
_PREFIX = "model."  # the checkpoint keeps everything but lm_head below it


def load_model(
    folder: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    fast: bool = True,
    int8: bool = False,
) -> SmolVLM:
    """Build the model in ``folder``; not ``fast`` leaves every module the plain one.

    Raises ModelDamaged, naming file and tensor, or UsageError for ``int8`` where it can't be had.
    """
    try:
        model = hollow_model(config)
    except RuntimeError as error:  # sizes whose product no machine can hold
        raise ModelDamaged(f"{folder / 'config.json'}: {error}") from None
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        del wanted["lm_head.weight"]
    state = {
        name: tensor.to(device=device, dtype=dtype)
        for name, tensor in _read_checked(folder, wanted)
    }
    if config.tie_word_embeddings:
        state["lm_head.weight"] = state["text_model.embed_tokens.weight"]
    try:
        model.load_state_dict(state, strict=True, assign=True)
    except RuntimeError:
        raise ModelDamaged(f"{folder}: its weights were replaced while they were read") from None
    del state  # or each weight would be there twice, until all are in their fast form
    model.eval().requires_grad_(False)
    return specialise(model, int8=int8) if fast else model


def hollow_model(config: ModelConfig) -> SmolVLM:
    """The plain model with shapes and no storage, to which tensors are to be assigned."""
    with torch.device("meta"), _Uninitialised():
        return SmolVLM(config)


class _Uninitialised(TorchFunctionMode):
    """Skips the random numbers of a module's birth: on the meta device, drawing them to no effect
    makes torch import its compiler, a second of start-up."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_init = getattr(func, "__module__", None) == "torch.nn.init"
        return kwargs["tensor"] if is_init else func(*args, **kwargs)


def _read_checked(folder: Path, wanted: dict[str, torch.Size]) -> Iterator[tuple[str, Tensor]]:
    """Each wanted tensor once; every name and shape is compared before the first is read."""
    with ExitStack() as stack:
        found: dict[str, tuple[Path, Any, str]] = {}
        for path in weight_files(folder):
            with _border(path):
                file = stack.enter_context(safe_open(path, framework="pt"))
                found |= {key.removeprefix(_PREFIX): (path, file, key) for key in file.keys()}
        _compare_names(folder, wanted, found.keys())
        for name, (path, file, key) in found.items():
            shape = file.get_slice(key).get_shape()
            if shape != list(wanted[name]):
                raise ModelDamaged(
                    f"{path}: {key} has shape {shape}, config.json asks for {list(wanted[name])}"
                )
        for name, (path, file, key) in found.items():
            if wanted[name].numel() < _LARGE:
                yield name, file.get_tensor(key)
                continue
            # A mapping of its own, so that what was converted or packed leaves no pages behind.
            with _border(path), safe_open(path, framework="pt") as own:
                tensor = own.get_tensor(key)
            yield name, tensor


@contextmanager
def _border(path: Path) -> Iterator[None]:
    """Where what is wrong with a file, or has become of it meanwhile, turns into ModelDamaged."""
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelDamaged(f"{path}: damaged or truncated ({error})") from None


def _compare_names(folder: Path, wanted: dict[str, torch.Size], found: object) -> None:
    names = set(found)  # type: ignore[call-overload]
    for what, odd in (("missing", wanted.keys() - names), ("unknown", names - wanted.keys())):
        if odd:
            shown = ", ".join(sorted(odd)[:3]) + (", ..." if len(odd) > 3 else "")
            raise ModelDamaged(f"{folder}: {len(odd)} tensors are {what}: {shown}")


def weight_files(folder: Path) -> list[Path]:
    """model.safetensors, or the shards that model.safetensors.index.json lists."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.exists() or not index.exists():
        paths = [single]
    else:
        shards = read_json(index).get("weight_map")
        names = list(shards.values()) if isinstance(shards, dict) else []
        if not names or not all(isinstance(n, str) and _PLAIN.fullmatch(n) for n in names):
            raise ModelDamaged(f"{index}: weight_map doesn't list plain file names")
        paths = [folder / name for name in sorted(set(names))]
    for path in paths:
        if not path.is_file():
            raise ModelDamaged(f"{path}: missing; argus reads weights from safetensors alone")
    return paths
