"""What glimpse is trained with: scripts/train_glimpse.py, reward.py and glimpse_data.py."""

import copy
import csv
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
import train_glimpse as training
from conftest import TINY, random_model
from glimpse_data import (
    PackedPhoto,
    Photo,
    clean,
    coco,
    flickr8k,
    pack,
    unpack,
    usable,
    view,
    whole,
)
from PIL import Image
from pycocoevalcap.cider.cider import Cider as PublishedCider
from reward import Cider, faults, words
from torch import Tensor

from argus_cli.smolvlm.config import parse_model
from argus_cli.smolvlm.model import SmolVLM

BEGINNING = [1, 40, 41, 42]
ANSWERS = [[50, 51, 52, 53], [60, 61], [50, 51, 70]]


@pytest.fixture(scope="module")
def model() -> SmolVLM:
    return random_model(parse_model(TINY))


class Speaker:
    """What sampling asks of an encoder: which token ends an answer and which never come."""

    never = [0, 1, 2, 3]

    def __init__(self, end: int = 22):
        self.ids = {"<end_of_utterance>": end}


def photograph(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (48, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


# --------------------------------------------------------------------- rewards


def test_rewards_are_the_published_ciders() -> None:
    rng = random.Random(3)
    lexicon = "a dog man runs on the green grass with red ball two boys in water".split()

    def sentence() -> list[str]:
        return [rng.choice(lexicon) for _ in range(rng.randrange(3, 12))]

    references = [[sentence() for _ in range(5)] for _ in range(20)]
    said = [rng.choice([photo[0][:-1], sentence()]) for photo in references]
    published, each = PublishedCider().compute_score(
        {n: [" ".join(text) for text in photo] for n, photo in enumerate(references)},
        {n: [" ".join(text)] for n, text in enumerate(said)},
    )
    cider = Cider(references)
    ours = [cider(number, text) for number, text in enumerate(said)]
    assert published > 0.5
    assert ours == pytest.approx(list(each), rel=1e-9)  # float64 on both sides


def test_a_caption_that_comes_to_no_end_loses() -> None:
    references = [[words("A dog runs.")], [words("A cat sleeps.")]]
    cider = Cider(references)
    assert words("A dog's ball, two!") == ["a", "dog's", "ball", "two", "</s>"]
    assert cider(0, words("A dog runs")) > cider(0, words("A dog runs", ended=False))


@pytest.mark.parametrize(
    ("caption", "number"),
    [
        ("A man in a hat is riding a bike in the snow.", 0),
        ("A man wearing a hat is wearing a hat.", 2),
        ("A dog and a dog.", 1),
        ("Two dogs are.", 1),
        ("A dog in the.", 1),
        ("A boy is looking up.", 0),
        ("", 0),
    ],
)
def test_what_is_said_twice_or_breaks_off_is_a_fault(caption: str, number: int) -> None:
    assert faults(words(caption)) == number


def test_a_fault_is_taken_off_the_reward() -> None:
    photos = [PackedPhoto(b"", ("A man in a hat.",)), PackedPhoto(b"", ("A cat.",))]
    judge, twice = training.Judge(photos, scale=0.1), words("A hat in a hat.")
    assert judge(0, twice) == 0.1 * judge.cider(0, twice) - training.FAULT_COST
    assert judge(0, words("A hat.")) == 0.1 * judge.cider(0, words("A hat."))


def test_what_was_said_lately_costs_more_each_time_and_is_forgotten() -> None:
    repeats = training.Repeats()
    costs = [repeats(["a", "dog"]) for _ in range(3)]
    assert costs[0] == 0 < costs[1] < costs[2]
    assert repeats(["a", "cat"]) == 0
    for number in range(6500):
        repeats([str(number)])
    assert repeats(["a", "dog"]) == 0
    assert len(repeats.lately) == 6500


# --------------------------------------------------------------------- batches


def test_packed_answers_are_what_each_would_be_alone(model: SmolVLM) -> None:
    rows = [
        training.pack_answers(BEGINNING, ANSWERS),
        training.pack_answers(BEGINNING[1:], ANSWERS[:2]),
    ]
    ids, segments, positions, targets = training.collate(rows)
    with torch.inference_mode():
        hidden = training.decode_packed(model, model.embed(ids), segments, positions)
        logits = model.lm_head(hidden)
        for row, beginning, answers in ((0, BEGINNING, ANSWERS), (1, BEGINNING[1:], ANSWERS[:2])):
            for number, answer in enumerate(answers, 1):
                alone = model(model.embed(torch.tensor([[*beginning, *answer[:-1]]])))
                mine = segments[row] == number
                assert targets[row][mine].tolist() == answer
                # 1e-5 of logits of about 1: float32 sums in another order
                torch.testing.assert_close(
                    logits[row][mine], alone[0, len(beginning) - 1 :], rtol=0, atol=1e-5
                )


def test_a_pass_shows_every_photo_once_and_goes_on_anywhere() -> None:
    photos, share = 10, 4
    shown = [training.places(photos, share, batch) for batch in range(5)]
    flat = [place for batch in shown for place in batch]
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))
    assert flat[:10] != flat[10:]
    assert training.places(photos, share, 3) == shown[3]


# -------------------------------------------------------------------- sampling


def log_probability(model: SmolVLM, beginning: list[int], features: Tensor, answer: list[int]):
    """Of the whole answer, one token at a time, with the rule of what is never drawn."""
    total = torch.zeros(())
    for length in range(len(answer)):
        x = model.embed(torch.tensor([[*beginning, *answer[:length]]]), features)
        logits = model(x)[0, -1].index_fill(0, torch.tensor(Speaker.never), -1e9)
        total = total + logits.log_softmax(-1)[answer[length]]
    return total


def picture_beginning(model: SmolVLM, tokens: int) -> list[int]:
    return [30, *[model.config.image_token_id] * tokens, 31]


def test_samples_end_hold_no_special_tokens_and_look_at_their_photo(model: SmolVLM) -> None:
    torch.manual_seed(5)
    features = torch.randn(2, 4, 96)
    # rows of different lengths: the shorter is padded
    beginnings = [picture_beginning(model, 4), [33, *picture_beginning(model, 4)]]
    drawn = training.draw(model, features, beginnings, Speaker(), samples=40)
    assert [len(some) for some in drawn] == [40, 40]
    for answer in (answer for some in drawn for answer in some):
        assert not set(answer) & set(Speaker.never)
        assert 22 not in answer[:-1] and (answer[-1] == 22 or len(answer) == 28)


def test_samples_come_as_often_as_the_model_says(model: SmolVLM) -> None:
    torch.manual_seed(6)
    features = torch.randn(1, 4, 96)
    beginning = picture_beginning(model, 4)
    with torch.inference_mode():
        logits = model(model.embed(torch.tensor([beginning]), features))[0, -1]
        said = logits.index_fill(0, torch.tensor(Speaker.never), -torch.inf).softmax(-1)
    drawn = training.draw(model, features, [beginning], Speaker(), samples=2000)[0]
    counts = torch.bincount(torch.tensor([answer[0] for answer in drawn]), minlength=400) / 2000
    # Five standard errors of the commonest first token's share; the seed is fixed.
    top = said.argmax()
    assert abs(counts[top] - said[top]) < 5 * (said[top] * (1 - said[top]) / 2000).sqrt()
    assert (counts - said).abs().sum() < 0.4


def test_samples_of_a_model_that_is_sure_are_what_each_row_would_say_alone(
    model: SmolVLM,
) -> None:
    sure = copy.deepcopy(model)
    sure.lm_head.weight.mul_(1e4)
    torch.manual_seed(8)
    features = torch.randn(2, 4, 96)
    # The second row is padded; the first ends early, and its samples leave the batch.
    beginnings = [[33, 34, 35, *picture_beginning(model, 4)], picture_beginning(model, 4)]
    alone = []
    with torch.inference_mode():
        for row, beginning in enumerate(beginnings):
            ids = list(beginning)
            for _ in range(28):
                logits = sure(sure.embed(torch.tensor([ids]), features[[row]]))[0, -1]
                logits = logits.index_fill(0, torch.tensor(Speaker.never), -torch.inf)
                ids.append(int(logits.argmax()))
            alone.append(ids[len(beginning) :])
    end = next(token for token in alone[0][2:] if token not in alone[0][:2] + alone[1])
    alone[0] = alone[0][: alone[0].index(end) + 1]
    drawn = training.draw(sure, features, beginnings, Speaker(end), samples=2)
    assert drawn == [[answer] * 2 for answer in alone]


def test_the_policy_follows_the_rewards(model: SmolVLM) -> None:
    torch.manual_seed(7)
    features = torch.randn(2, 4, 96)
    beginnings = [picture_beginning(model, 4)] * 2
    answers = [[[50, 51, 22], [60, 22]], [[70, 22], [71, 72, 73, 22]]]
    weights = torch.tensor([[1.5, -0.5], [0.25, 2.0]])
    rows = [training.pack_answers(*each) for each in zip(beginnings, answers, strict=True)]
    with torch.inference_mode():
        loss = training.policy_loss(model, features, training.collate(rows), weights, Speaker.never)
        expected = -sum(
            weights[row, number] * log_probability(model, beginnings[row], features[[row]], answer)
            for row, some in enumerate(answers)
            for number, answer in enumerate(some)
        ) / sum(len(answer) for some in answers for answer in some)
    # 1e-4 of about 6: eleven float32 log-probabilities, added in another order
    torch.testing.assert_close(loss, expected, rtol=0, atol=1e-4)


# ----------------------------------------------------------------- checkpoints


def stepped(path: Path, steps: int, total: int = 6) -> training.Trainer:
    torch.manual_seed(0)
    options = training.argparse.Namespace(device=torch.device("cpu"), steps=total)
    model = random_model(parse_model(TINY)).requires_grad_(True)
    trainer = training.Trainer(model, path, options, rate=1e-3)
    for step in range(trainer.step, steps):
        x = model.embed(torch.tensor([[step + 40, 41]]))
        trainer.update(model(x).square().mean())
    trainer.save()
    return trainer


def test_a_run_that_stopped_ends_where_one_that_did_not_would(tmp_path: Path) -> None:
    stepped(tmp_path / "stopped.pt", 3)
    resumed = stepped(tmp_path / "stopped.pt", 6)
    whole_run = stepped(tmp_path / "whole.pt", 6)
    assert resumed.step == whole_run.step == 6
    for name, parameter in whole_run.model.named_parameters():
        assert torch.equal(parameter, resumed.model.get_parameter(name)), name
        assert torch.equal(whole_run.average[name], resumed.average[name]), name
    assert not list(tmp_path.glob("*.tmp"))


def test_what_is_exported_is_the_average_without_what_only_training_needs(tmp_path: Path) -> None:
    trainer = stepped(tmp_path / "run.pt", 6)
    state = torch.load(tmp_path / "run.pt", weights_only=True)
    state["model"]["class_head.weight"] = state["average"]["class_head.weight"] = torch.ones(2, 2)
    torch.save(state, tmp_path / "run.pt")
    weights, told = training.averaged(tmp_path / "run.pt")
    assert told == "run step 6"
    assert set(trainer.average) - set(weights) == {"lm_head.weight"}  # tied in what is trained
    assert "class_head.weight" not in weights
    name = "text_model.norm.weight"
    assert torch.equal(weights[name], trainer.average[name])
    assert not torch.equal(weights[name], trainer.model.get_parameter(name))


# ---------------------------------------------------------------------- photos


@pytest.mark.parametrize(
    ("written", "cleaned"),
    [
        ("a dog runs .", "A dog runs."),
        ("  a  girl 's hat , red ", "A girl's hat, red."),
        ("`` hello ''", "Hello."),
        (" . ", ""),
    ],
)
def test_captions_are_one_clean_sentence(written: str, cleaned: str) -> None:
    assert clean(written) == cleaned


def test_shards_hold_what_was_packed(tmp_path: Path) -> None:
    photograph(tmp_path / "small.jpg", (200, 10, 10))
    photograph(tmp_path / "large.png", (10, 200, 10), (900, 700))
    photos = [
        Photo(tmp_path / "small.jpg", ("A red thing.", "Red.")),
        Photo(tmp_path / "large.png", ("A green thing.",)),
    ]
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards/train-007.zip").write_bytes(b"of a larger run before")
    pack(photos, tmp_path / "shards/train")
    found = unpack(tmp_path / "shards/train")
    assert [photo.captions for photo in found] == [photo.captions for photo in photos]
    assert found[0].jpeg == (tmp_path / "small.jpg").read_bytes()
    assert min(found[1].open().size) == 320
    assert whole(found[0].open()).shape == (256, 256, 3)


def test_unpacked_before_packed_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="run the stage `pack` first"):
        unpack(tmp_path / "train")


def test_views_repeat_and_mirrored_ones_lose_left_and_right() -> None:
    ramp = np.linspace(0, 255, 60, dtype=np.uint8)
    picture = Image.fromarray(np.tile(ramp[None, :, None], (40, 1, 3)))
    for seed in range(20):
        tile, mirrored = view(picture, random.Random(seed), smallest=0.8)
        again, _ = view(picture, random.Random(seed), smallest=0.8)
        assert np.array_equal(tile, again) and tile.shape == (256, 256, 3)
        # brighter to the right, unless mirrored
        assert (tile[:, -40:].mean() < tile[:, :40].mean()) == mirrored
    captions = ("A man on the left.", "A man.", "RIGHT of him.")
    assert usable(captions, False) == captions
    assert usable(captions, True) == ("A man.",)


def test_no_photo_is_trained_on_and_held_out(tmp_path: Path) -> None:
    for number in range(1, 61):
        photograph(tmp_path / f"photos/COCO_val2014_{number:012}.jpg", (number, 0, 0))
    notes = [{"image_id": n, "caption": f"a thing number {n}"} for n in range(1, 61)]
    (tmp_path / "all.json").write_text(json.dumps({"annotations": notes}))
    with (tmp_path / "some.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ["image_id", "caption"])
        rows.writeheader()
        rows.writerow({"image_id": 20, "caption": "A thing, number 20."})  # the same words
        rows.writerow({"image_id": 20, "caption": "another"})
        rows.writerow({"image_id": 999, "caption": "of a photo that is not there"})
    files = [tmp_path / "all.json", tmp_path / "some.csv"]
    kept = coco(files, tmp_path / "photos", held_out=True)
    trained = coco(files, tmp_path / "photos")
    assert len(kept) == 3 and len(trained) == 57
    assert not {photo.path for photo in kept} & {photo.path for photo in trained}
    assert kept[0].captions == ("A thing number 20.", "Another.")


def test_flickr8k_takes_the_larger_copy_and_names_what_is_missing(tmp_path: Path) -> None:
    splits = tmp_path / "flickr8k_splits"
    splits.mkdir()
    (splits / "Flickr_8k.trainImages.txt").write_text("b.jpg\na.jpg\nnever_captioned.jpg\n")
    rows = "image,caption\na.jpg,a dog .\na.jpg,a cat .\nb.jpg,a boat .\n"
    (tmp_path / "flickr8k_captions.csv").write_text(rows)
    photograph(tmp_path / "photos/a.jpg", (0, 0, 0))
    with pytest.raises(SystemExit, match=r"1 photos are missing, b\.jpg for one"):
        flickr8k(tmp_path, tmp_path / "photos", "train")
    photograph(tmp_path / "photos/b.jpg", (0, 0, 0))
    photograph(tmp_path / "photos/own_shape/b.jpg", (0, 0, 0), (400, 300))
    first, second = flickr8k(tmp_path, tmp_path / "photos", "train")
    assert first == Photo(tmp_path / "photos/own_shape/b.jpg", ("A boat.",))
    assert second.captions == ("A dog.", "A cat.")
