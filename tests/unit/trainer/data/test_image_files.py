"""Images as people keep them: a folder for each class, and tars of WebDataset."""

from __future__ import annotations

import io
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from drumline_contract.config import ConfigError, DataConfig, ModelConfig
from drumline_contract.config.data import Augmentation
from drumline_contract.config.variants import Family
from drumline_trainer.data.corpus import CorpusChangedError
from drumline_trainer.data.encoded_image_dataset import EncodedImageDataset, UnreadableImageError
from drumline_trainer.data.image_files import list_image_files
from drumline_trainer.data.sources import open_dataset
from tests.unit.trainer.data.tars import write_tar

MODEL = ModelConfig(family=Family.VIT, image_size=8, patch_size=4, channels=3, classes=3)


def encoded(shade: int, *, size: tuple[int, int] = (12, 10), kind: str = "PNG") -> bytes:
    """Left half of one shade, right half of a darker one."""
    pixels = np.full((size[1], size[0], 3), shade, dtype=np.uint8)
    pixels[:, size[0] // 2 :] //= 2
    room = io.BytesIO()
    Image.fromarray(pixels).save(room, kind)
    return room.getvalue()


@pytest.fixture
def folders(tmp_path: Path) -> DataConfig:
    """Shades 200 to 204 of class 0, 100 to 102 of class 1 (one below another), 50 of class 2."""
    for name, shades in (("ant", range(200, 205)), ("bee/x", range(100, 103)), ("cow", [50])):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for shade in shades:
            (tmp_path / "photos" / name / f"{shade}.png").write_bytes(encoded(shade))
    (tmp_path / "photos" / "README").write_text("not a class")
    return DataConfig(source=str(tmp_path / "photos"))


@pytest.fixture
def tars(tmp_path: Path) -> DataConfig:
    """The same images in two tars, one sample's class before its image."""
    (tmp_path / "shards").mkdir()
    samples = [(0, shade) for shade in range(200, 205)]
    samples += [(1, shade) for shade in range(100, 103)] + [(2, 50)]
    for number, part in enumerate((samples[:4], samples[4:])):
        members: list[tuple[str, bytes]] = []
        for label, shade in part:
            pair = [(f"{shade:04}.png", encoded(shade)), (f"{shade:04}.cls", b"%d\n" % label)]
            members += pair if shade != 101 else [*reversed(pair), ("0101.json", b"{}")]
        write_tar(tmp_path / "shards" / f"train-{number}.tar", members)
    return DataConfig(source=str(tmp_path / "shards"))


@pytest.fixture(params=["folders", "tars"])
def config(request: pytest.FixtureRequest) -> DataConfig:
    return request.getfixturevalue(request.param)


def images(config: DataConfig, *, model: ModelConfig = MODEL, seed: int = 3) -> EncodedImageDataset:
    dataset = open_dataset(config, seed=seed, model=model)
    assert isinstance(dataset, EncodedImageDataset)
    return dataset


def refused(config: DataConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        open_dataset(config, seed=0, model=MODEL)
    return str(caught.value)


def test_every_image_with_its_class_once_in_an_epoch(config: DataConfig) -> None:
    dataset = images(config)
    dataset.check_model(MODEL)
    batch = dataset.batch(range(9))
    assert batch.inputs.shape == (9, 3, 8, 8)
    assert batch.inputs.dtype == np.uint8
    shades = batch.inputs[:, 0, 0, 0].tolist()
    assert Counter(zip(shades, batch.targets.tolist(), strict=True)) == Counter(
        [(shade, 0) for shade in range(200, 205)]
        + [(shade, 1) for shade in range(100, 103)]
        + [(50, 2)]
    )
    assert (batch.inputs[:, :, :, -1] == batch.inputs[:, :, :, 0] // 2).all()  # not mirrored


def test_a_batch_is_the_same_whoever_reads_it_and_in_whatever_parts(config: DataConfig) -> None:
    config = replace(config, augmentation=Augmentation.CROP_AND_MIRROR)
    whole = images(config).batch(range(30)).inputs
    other = images(config)
    parts = [other.batch(range(start, start + 6)).inputs for start in range(24, -1, -6)]
    assert (np.concatenate(parts[::-1]) == whole).all()
    assert (images(config, seed=4).batch(range(30)).inputs != whole).any()


def test_epochs_show_other_parts_and_half_of_them_mirrored(folders: DataConfig) -> None:
    dataset = images(replace(folders, augmentation=Augmentation.CROP_AND_MIRROR))
    batch = dataset.batch(range(9 * 40))
    brighter_left = batch.inputs[:, 0, 4, 0] > batch.inputs[:, 0, 4, -1]
    brighter_right = batch.inputs[:, 0, 4, 0] < batch.inputs[:, 0, 4, -1]
    both = brighter_left.sum() + brighter_right.sum()
    assert both > 9 * 20  # the others are cut from one half
    assert 0.35 < brighter_left.sum() / both < 0.65
    cow = batch.inputs[batch.targets == 2]
    assert len(np.unique(cow.reshape(len(cow), -1), axis=0)) > 10


def test_what_is_evaluated_is_the_middle_each_time(folders: DataConfig) -> None:
    dataset = images(replace(folders, augmentation=Augmentation.CROP_AND_MIRROR))
    held_out = dataset.without(3).held_out_part()
    first, second = held_out.batch(range(3)), held_out.batch(range(3, 6))
    assert (first.inputs == second.inputs).all()
    assert (first.targets == second.targets).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_have_the_channels_of_the_model(folders: DataConfig, channels: int) -> None:
    model = replace(MODEL, channels=channels)
    assert images(folders, model=model).batch(range(2)).inputs.shape == (2, channels, 8, 8)
    with pytest.raises(ConfigError, match="images have 1, 3 or 4, not 2"):
        images(folders, model=replace(MODEL, channels=2))


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_other_formats_are_decoded_by_what_they_are(folders: DataConfig, kind: str) -> None:
    path = Path(folders.source) / "cow" / "50.png"
    path.write_bytes(encoded(50, kind=kind))
    batch = images(folders).batch(range(9))
    (cow,) = batch.inputs[batch.targets == 2]
    assert abs(int(cow[0, 4, 0]) - 50) <= 3


def as_seen(folders: DataConfig, content: bytes) -> np.ndarray:
    """The image of class 2 where it is this file, uint8 [I, I, C]."""
    (Path(folders.source) / "cow" / "50.png").write_bytes(content)
    batch = images(folders).batch(range(9))
    (cow,) = batch.inputs[batch.targets == 2]
    return cow.transpose(1, 2, 0)


def turned(exif: bytes) -> bytes:
    """A picture of four quarters of which none is like another, as a camera writes it."""
    pixels = np.array([[0, 80], [160, 240]], dtype=np.uint8).repeat(8, axis=0).repeat(8, axis=1)
    room = io.BytesIO()
    Image.fromarray(pixels).convert("RGB").save(room, "PNG", exif=exif)
    return room.getvalue()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_its_camera_was_held(folders: DataConfig, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = turned(exif.tobytes())
    with Image.open(io.BytesIO(content)) as picture:
        upright = ImageOps.exif_transpose(picture).resize((8, 8))
    assert (as_seen(folders, content) == np.asarray(upright)).all()


def test_damaged_exif_turns_nothing(folders: DataConfig) -> None:
    plain = as_seen(folders, turned(b""))
    assert (as_seen(folders, turned(b"Exif\0\0no header")) == plain).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_gray_of_16_bits_keeps_its_shades(folders: DataConfig, channels: int) -> None:
    shades = np.array([[0, 20_000], [40_000, 65_535]], dtype=np.uint16)
    room = io.BytesIO()
    Image.fromarray(shades.repeat(4, axis=0).repeat(4, axis=1)).save(room, "PNG")
    (Path(folders.source) / "cow" / "50.png").write_bytes(room.getvalue())
    batch = images(folders, model=replace(MODEL, channels=channels)).batch(range(9))
    (cow,) = batch.inputs[batch.targets == 2]
    assert cow[0, [0, 0, 7, 7], [0, 7, 0, 7]].tolist() == [0, 78, 156, 255]


def test_images_that_are_left_out_are_said(folders: DataConfig) -> None:
    whole = images(folders).files
    photos = Path(folders.source)
    (photos / "ant" / "1.bmp").write_bytes(encoded(1, kind="BMP"))
    (photos / "bee" / "x" / "empty.JPG").write_bytes(b"")
    (photos / "loose.png").write_bytes(encoded(2))
    (photos / "ant" / "notes.txt").write_text("no image")
    dataset = images(folders)
    assert dataset.files.left_out == ("loose.png", "ant/1.bmp", "bee/x/empty.JPG")
    assert dataset.files.labels.tolist() == whole.labels.tolist()
    _, note = dataset.notes()
    assert note.startswith("left out: 3 images, the first loose.png")


def test_too_few_classes_and_models_of_text_are_refused(folders: DataConfig) -> None:
    dataset = images(folders)
    with pytest.raises(ConfigError, match=r"data\.source.*2"):
        dataset.check_model(replace(MODEL, classes=2))
    with pytest.raises(ConfigError, match="llama takes text"):
        dataset.check_model(ModelConfig())


def test_the_numbers_of_classes_are_said(folders: DataConfig, tars: DataConfig) -> None:
    assert images(folders).notes() == ("3 classes: 0 ant, 1 bee, 2 cow",)
    assert images(folders).class_names() == ("ant", "bee", "cow")
    assert images(tars).notes() == images(tars).class_names() == ()


@pytest.mark.parametrize("names", [("train", "val"), ("Test", "Train")])
def test_folders_of_splits_are_not_taken_for_classes(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    for name in names:
        for kind in ("ant", "bee"):
            (tmp_path / name / kind).mkdir(parents=True)
            (tmp_path / name / kind / "1.png").write_bytes(encoded(100))
    split = next(name for name in names if name.lower() == "train")
    with pytest.raises(ConfigError, match=f"folders of splits .*name one of them, .*/{split}$"):
        list_image_files(tmp_path)
    assert list_image_files(tmp_path / split).classes == ("ant", "bee")
    # With a folder of another name, all are classes.
    (tmp_path / "wasp").mkdir()
    (tmp_path / "wasp" / "1.png").write_bytes(encoded(100))
    assert list_image_files(tmp_path).classes == (*names, "wasp")


def test_other_pixels_and_other_classes_are_another_fingerprint(
    folders: DataConfig, tars: DataConfig
) -> None:
    before = images(folders).fingerprint(), images(tars).fingerprint()
    assert images(folders).fingerprint() == before[0]
    path = Path(folders.source) / "cow" / "50.png"
    path.rename(path.parents[1] / "ant" / "50.png")
    (path.parent / "51.png").write_bytes(encoded(51))
    write_tar(Path(tars.source) / "train-1.tar", [("1.png", encoded(50)), ("1.cls", b"1")])
    assert images(folders).fingerprint() != before[0]
    assert images(tars).fingerprint() != before[1]


def test_an_image_that_changes_ends_the_run(config: DataConfig) -> None:
    dataset = images(config)
    for path in Path(config.source).rglob("*"):
        if path.is_file():
            os.utime(path, ns=(1, 1))
    with pytest.raises(CorpusChangedError, match="changed since the run began"):
        dataset.batch(range(9))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"<svg/>", r"cow/50\.png, image 8: no JPEG, PNG, WEBP that can be decoded"),
        (encoded(50)[:60], "no JPEG, PNG, WEBP that can be decoded"),
        (encoded(50, kind="GIF"), "no JPEG, PNG, WEBP that can be decoded"),
        (
            # a header that promises 60,000 x 60,000 pixels
            encoded(50)[:16] + (60_000).to_bytes(4, "big") * 2 + encoded(50)[24:],
            "that can be decoded|more than",
        ),
    ],
)
def test_what_is_no_image_is_named(folders: DataConfig, content: bytes, sentence: str) -> None:
    (Path(folders.source) / "cow" / "50.png").write_bytes(content)
    with pytest.raises(UnreadableImageError, match=sentence):
        images(folders).batch(range(9))


def test_a_class_without_images_is_refused(folders: DataConfig) -> None:
    (Path(folders.source) / "dog").mkdir()
    assert "dog is the folder of a class and holds no image" in refused(folders)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([("a/7.png", encoded(7))], r"sample a/7 lacks its class (.cls)"),
        ([("7.cls", b"1")], "sample 7 lacks an image"),
        ([("7.png", encoded(7)), ("7.cls", b"ant")], "7.cls must be a whole number, not b'ant'"),
        ([("7.png", encoded(7)), ("7.cls", b"-1")], "7.cls must be a whole number"),
        ([("7.png", b""), ("7.cls", b"1")], "7.png has 0 bytes"),
        (
            [("7.in.png", encoded(7)), ("7.mask.png", encoded(8)), ("7.cls", b"1")],
            "sample 7 has 7.in.png and 7.mask.png; keep one of them",
        ),
        ([("7.png", encoded(7)), ("7.cls", b"1"), ("7.cls", b"2")], "7.cls and 7.cls"),
        ([], "holds no image in its tars"),
    ],
)
def test_a_tar_of_other_things_is_refused(
    tmp_path: Path, members: list[tuple[str, bytes]], sentence: str
) -> None:
    write_tar(tmp_path / "one.tar", members)
    assert sentence in refused(DataConfig(source=str(tmp_path / "one.tar")))


def test_of_a_sample_the_image_and_the_class_are_those_of_the_plain_endings(
    tmp_path: Path,
) -> None:
    """WebDataset takes mask.png and png for two parts of a sample."""
    members = [
        *(("7.png", encoded(7)), ("7.mask.png", encoded(8))),
        *(("7.cls", b"1"), ("7.coarse.cls", b"0")),
        *(("8.mask.png", encoded(8)), ("8.PNG", encoded(9)), ("8.cls", b"2")),
        *(("9.photo.png", encoded(10)), ("9.cls", b"3")),
    ]
    files = list_image_files(write_tar(tmp_path / "a.tar", members))
    assert files.labels.tolist() == [1, 2, 3]
    assert [files.read(index) for index in range(3)] == [encoded(n) for n in (7, 9, 10)]


def test_hidden_files_beside_images_are_left_alone(folders: DataConfig, tars: DataConfig) -> None:
    """A folder of an editor would be a class, and number all others anew."""
    whole = [images(config).files for config in (folders, tars)]
    photos = Path(folders.source)
    (photos / "ant" / "._200.png").write_bytes(b"Mac OS X")
    for hidden in (photos / ".ipynb_checkpoints", photos / "bee" / ".cache"):
        hidden.mkdir()
        (hidden / "200.png").write_bytes(encoded(200))
    (Path(tars.source) / "._train-0.tar").write_bytes(b"Mac OS X")
    for config, before in zip((folders, tars), whole, strict=True):
        again = images(config).files
        assert again.classes == before.classes
        assert again.labels.tolist() == before.labels.tolist()


def test_what_macos_writes_beside_files_is_left_alone(tmp_path: Path) -> None:
    members = [("a/._7.png", b"Mac OS X"), ("a/7.png", encoded(7)), ("a/7.cls", b"1")]
    write_tar(tmp_path / "one.tar", members)
    dataset = images(DataConfig(source=str(tmp_path / "one.tar")))
    assert dataset.batch(range(1)).targets.tolist() == [1]


def test_a_tar_that_is_cut_short_or_compressed_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "cut.tar"
    write_tar(path, [("7.cls", b"1"), ("7.png", encoded(7) + bytes(4096))])
    path.write_bytes(path.read_bytes()[:2048])
    assert "not a whole tar without compression: unexpected end of data" in refused(
        DataConfig(source=str(path))
    )
    path.write_bytes(b"\x1f\x8b" + bytes(600))
    assert "not a whole tar without compression" in refused(DataConfig(source=str(path)))


def test_a_model_of_text_reads_a_folder_of_pictures_as_little_as_before(
    folders: DataConfig,
) -> None:
    with pytest.raises(ConfigError, match="PNG"):
        open_dataset(replace(folders, pattern="**/*"), seed=0, model=ModelConfig())
