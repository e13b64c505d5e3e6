"""Models by name without their files, their random weights, and the picture that they are shown."""

import json
from io import BytesIO
from pathlib import Path

import pytest
import torch
from PIL import Image

from argus_cli.errors import ModelMissing
from argus_cli.profiling.picture import draw, grid_of
from argus_cli.profiling.subject import open_subject, random_model
from argus_cli.smolvlm.prompt import IMAGE
from argus_cli.smolvlm.tiling import cut_tiles
from argus_cli.zoo.catalog import find
from argus_cli.zoo.manifest import load_manifests, models_folder

HUB = Path(__file__).parents[1] / "golden/hub"
ON_THE_HUB = sorted(name for name, manifest in load_manifests().items() if manifest.repo)
CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_shapes_are_the_checkpoints(name: str) -> None:
    folder = HUB / str(load_manifests()[name].repo).partition("/")[2]
    shapes = json.loads((models_folder() / name / "shapes.json").read_text())
    for part in ("config", "preprocessor_config"):
        assert shapes[part] == json.loads((folder / f"{part}.json").read_text())


@pytest.mark.parametrize("name", ON_THE_HUB)
def test_shapes_alone_are_no_model(name: str) -> None:
    subject = open_subject(name)
    assert (subject.name, subject.folder) == (name, None)
    with pytest.raises(ModelMissing):
        find(name)


def test_a_repository_names_its_model() -> None:
    assert open_subject("HuggingFaceTB/SmolVLM-256M-Instruct").name == "smolvlm-256m"


def test_what_is_here_brings_its_own(tiny_folder: Path) -> None:
    subject = open_subject(str(tiny_folder))
    real = subject.model(torch.float32, CPU, random=False)
    random = subject.model(torch.float32, CPU, random=True)
    weights = [m.text_model.embed_tokens.weight for m in (real, random)]
    assert weights[0].shape == weights[1].shape and not torch.equal(*weights)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ModelMissing, match="did you mean smolvlm-256m"):
        open_subject("smolvlm-256")


def test_random_weights_are_seeded_and_finite() -> None:
    config = open_subject("glimpse").config
    one, other = (random_model(config, torch.bfloat16, CPU) for _ in range(2))
    assert {p.dtype for p in one.parameters()} == {torch.bfloat16}
    assert all(map(torch.equal, one.parameters(), other.parameters()))
    assert one.lm_head.weight.data_ptr() == one.text_model.embed_tokens.weight.data_ptr()
    side = config.vision.image_size
    assert one.encode_tiles(torch.zeros(1, side, side, 3, dtype=torch.uint8)).isfinite().all()


def test_prompts_without_their_tokenizer_hold_the_models_own_image_token() -> None:
    subject = open_subject("smolvlm-256m")
    assert subject.encode(subject.tokenizer(), [IMAGE, "a word"])[0] == 49190


@pytest.mark.parametrize("tiles", [1, 2, 3, 5, 8, 13, 17])
def test_a_drawn_picture_makes_exactly_n_tiles(tiles: int) -> None:
    grid = grid_of(tiles, 32)
    picture = Image.open(BytesIO(draw(grid)))
    assert picture.size == tuple(edge * 3 // 2 for edge in grid.cut)
    assert grid.tiles == len(cut_tiles(picture, grid)) == tiles
