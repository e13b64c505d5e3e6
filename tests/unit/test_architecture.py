"""The layers of the design, the cost of importing, the public surface, the packaged folders."""

import ast
import inspect
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import argus_cli
from argus_cli import captioner, cluster, errors, schema

ROOT = Path(argus_cli.__file__).parent
LEVELS = (
    ("errors", "schema", "undecoded", "workers"),
    ("media", "zoo", "output", "models", "timeline",
     "smolvlm.config", "smolvlm.tiling", "smolvlm.prompt", "smolvlm.tokenizer"),
    ("device", "generation"),
    ("smolvlm.cache", "smolvlm.stem", "smolvlm.vision",
     "smolvlm.connector", "smolvlm.decoder", "smolvlm.model", "smolvlm.kernels",
     "smolvlm.weights", "picture_reader", "film_reader"),
    ("captioner",),
    ("batch", "profiling"),
    ("cluster",),
    ("cli",),
    ("__init__", "__main__"),
)  # fmt: skip
TORCH_FROM = 2  # the first level that may import torch
SMOLVLM_ORDER = (
    "schema", "errors", "config", "prompt", "tiling", "tokenizer",
    "cache", "stem", "vision", "connector", "decoder", "model", "kernels",
    "weights",
)  # fmt: skip
MODULES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).parts).removesuffix(".py")


def level_of(module: str) -> int:
    for number, names in enumerate(LEVELS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    raise AssertionError(f"{module} has no place in the layers")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports anywhere; TYPE_CHECKING blocks count too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def own_imports_of(path: Path) -> set[str]:
    """Our modules and packages among them: each import by its longest name that is one."""
    known = {name_of(module) for module in MODULES}
    known |= {name_of(folder.parent) for folder in ROOT.rglob("*/__init__.py")}
    found = set()
    for name in imports_of(path):
        parts = name.removeprefix("argus_cli.").split(".")
        names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        found.add(next((own for own in names if own in known), ""))
    return found - {"", name_of(path.parent)}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_go_one_way_down(path: Path) -> None:
    module = name_of(path)
    package = module.rpartition(".")[0]
    for other in own_imports_of(path):
        inside = package and other.startswith(f"{package}.")
        assert level_of(other) < level_of(module) or inside or level_of(module) > 6, (module, other)
        if inside and package == "smolvlm":
            order = [name.rpartition(".")[2] for name in (other, module)]
            assert SMOLVLM_ORDER.index(order[0]) < SMOLVLM_ORDER.index(order[1]), (module, other)
    if level_of(module) < TORCH_FROM:
        assert not {i for i in imports_of(path) if i.split(".")[0] == "torch"}


def loaded_by(statement: str) -> set[str]:
    """Which heavy modules a statement brings in, seen in a fresh interpreter."""
    heavy = {"av", "huggingface_hub", "numpy", "PIL", "pyarrow", "ray", "tokenizers", "torch",
             "transformers"}  # fmt: skip
    code = f"import sys; {statement}; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("statement", ["import argus_cli", "import argus_cli.cli.app"])
def test_starting_up_imports_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) == set()


def test_reading_pictures_needs_no_torch() -> None:
    assert "torch" not in loaded_by("import argus_cli.media.images, argus_cli.zoo.download")


def kinds_in(*modules: ModuleType) -> list[type]:
    """The classes that these modules define."""
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if inspect.isclass(kind) and kind.__module__ == module.__name__
    ]


def test_public_names() -> None:
    assert argus_cli.__all__ == sorted(argus_cli.__all__)
    public = {
        *captioner.__all__,
        *cluster.__all__,
        *(kind.__name__ for kind in kinds_in(errors, schema)),
    }
    assert set(argus_cli.__all__) == public - {"ExitCode"}
    for name in argus_cli.__all__:
        assert getattr(argus_cli, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = argus_cli.nothing


def test_packages_are_the_folders() -> None:
    with (ROOT.parent / "pyproject.toml").open("rb") as file:
        listed = tomllib.load(file)["tool"]["setuptools"]["packages"]
    folders = {f"argus_cli.{p.parent.relative_to(ROOT)}" for p in ROOT.rglob("*/__init__.py")}
    assert set(listed) == {"argus_cli", "argus_cli.models"} | {f.replace("/", ".") for f in folders}


def test_the_pixel_limit_of_the_command_is_that_of_the_library() -> None:
    """The command can't import it for its --help: that would load Pillow."""
    from argus_cli.cli.caption import caption
    from argus_cli.media.images import DEFAULT_MAX_PIXELS

    assert inspect.signature(caption).parameters["max_pixels"].default == DEFAULT_MAX_PIXELS
