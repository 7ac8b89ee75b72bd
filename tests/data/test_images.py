import hashlib
import pickle
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import datasets

from flsel.data.data_config import DataConfig
from flsel.data.sources import load_source
from flsel.errors import UserError

REAL = Path(__file__).resolve().parents[2] / "../shared/data"


def load(**config):
    return load_source(DataConfig(**config), clients=None, seed=0)


def write_idx(file, array):
    header = struct.pack(">i", 0x0800 + array.ndim) + struct.pack(f">{array.ndim}i", *array.shape)
    file.write_bytes(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def mnist(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, size in (("train", 12), ("t10k", 5)):
        write_idx(raw / f"{part}-images-idx3-ubyte", rng.integers(0, 256, (size, 28, 28)))
        write_idx(raw / f"{part}-labels-idx1-ubyte", np.arange(size) % 10)
    return tmp_path


def test_mnist_files_stay_uint8(mnist):
    source = load(name="mnist", root=str(mnist))
    assert source.train.x.dtype == torch.uint8
    assert source.train.x.shape == (12, 1, 28, 28)
    assert source.test.x.shape == (5, 1, 28, 28)
    assert source.train.y.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    seen = source.normalize(source.train.x)
    expected = (source.train.x.double() / 255 - 0.1307) / 0.3081
    torch.testing.assert_close(seen.double(), expected)


def test_idx_files_are_read_as_torchvision_reads_them(mnist):
    source = load(name="mnist", root=str(mnist))
    for ours, train in ((source.train, True), (source.test, False)):
        theirs = datasets.MNIST(mnist, train=train)
        assert torch.equal(ours.x[:, 0], theirs.data)
        assert torch.equal(ours.y, theirs.targets)
        assert ours.y.dtype == theirs.targets.dtype


@pytest.mark.parametrize(
    "header", [b"\x00\x00\x09\x01", b"\x00\x00\x08", b"\x00\x00\x08\x01\xff\xff\xff\xff"]
)
def test_other_files_are_no_idx_files(mnist, header):
    (mnist / "MNIST/raw/train-labels-idx1-ubyte").write_bytes(header + bytes(12))
    with pytest.raises(UserError, match=r"cannot read mnist in .* \(train-labels-idx1-ubyte "):
        load(name="mnist", root=str(mnist))


def test_symmetric_pixels(mnist):
    source = load(name="mnist", root=str(mnist), pixels="symmetric")
    seen = source.normalize(source.train.x).double()
    torch.testing.assert_close(seen, source.train.x.double() / 127.5 - 1)
    with pytest.raises(UserError, match=r"data\.pixels must be standard for synthetic"):
        load_source(DataConfig(pixels="symmetric"), clients=3, seed=1)


def test_the_environment_names_the_root(mnist, monkeypatch):
    monkeypatch.setenv("FLSEL_DATA", str(mnist))
    assert len(load(name="mnist").train) == 12


def test_missing_dataset_says_where_and_how(tmp_path):
    with pytest.raises(UserError) as error:
        load(name="fashion_mnist", root=str(tmp_path))
    for part in (str(tmp_path / "FashionMNIST/raw"), "data.root", "FLSEL_DATA", "data.download: true"):
        assert part in str(error.value)


def test_the_default_root_is_the_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("FLSEL_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=str(tmp_path / ".cache/flsel/cifar-10-batches-py")):
        load(name="cifar10")


@pytest.mark.parametrize("keep", [0, 3, 100, 5000])
@pytest.mark.parametrize("part", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_truncated_files(mnist, part, keep):
    file = mnist / "MNIST" / "raw" / part
    file.write_bytes(file.read_bytes()[: min(keep, file.stat().st_size - 1)])
    with pytest.raises(UserError, match=r"cannot read mnist in .*MNIST/raw"):
        load(name="mnist", root=str(mnist))


def test_a_missing_file_of_a_dataset(mnist):
    (mnist / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match=r"MNIST/raw .*a file is missing"):
        load(name="mnist", root=str(mnist))


def test_more_images_than_labels(mnist):
    write_idx(mnist / "MNIST/raw/train-labels-idx1-ubyte", np.arange(9))
    with pytest.raises(UserError, match="training set of mnist has 12 inputs but 9 labels"):
        load(name="mnist", root=str(mnist))


def test_labels_outside_the_range(mnist):
    write_idx(mnist / "MNIST/raw/t10k-labels-idx1-ubyte", np.array([0, 1, 2, 3, 10]))
    with pytest.raises(UserError, match="test set of mnist has the label 10"):
        load(name="mnist", root=str(mnist))


def cifar(monkeypatch, root, kind, labels):
    """Write a small CIFAR and put its checksums in the place of the real ones."""
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)

    def write(name, content):
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return [name, hashlib.md5(data).hexdigest()]

    for attribute in ("train_list", "test_list"):
        entries = []
        for name, _ in getattr(kind, attribute):
            images = rng.integers(0, 256, (20, 3072), dtype=np.uint8)
            entries.append(write(name, {"data": images, **labels}))
        monkeypatch.setattr(kind, attribute, entries)
    name, md5 = write(kind.meta["filename"], {kind.meta["key"]: [str(i) for i in range(100)]})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "filename": name, "md5": md5})
    return folder


def test_cifar10(tmp_path, monkeypatch):
    folder = cifar(monkeypatch, tmp_path, datasets.CIFAR10, {"labels": [i % 10 for i in range(20)]})
    source = load(name="cifar10", root=str(tmp_path))
    assert source.train.x.shape == (100, 3, 32, 32)
    assert source.train.x.dtype == torch.uint8
    assert source.test.x.shape == (20, 3, 32, 32)
    first = pickle.loads((folder / "data_batch_1").read_bytes())["data"][0]
    assert np.array_equal(source.train.x[0].numpy(), first.reshape(3, 32, 32))
    (folder / "test_batch").write_bytes(b"broken")
    with pytest.raises(UserError, match=r"cannot read cifar10 in .*cifar-10-batches-py"):
        load(name="cifar10", root=str(tmp_path))


def test_cifar100_fine_and_coarse(tmp_path, monkeypatch):
    labels = {"fine_labels": list(range(80, 100)), "coarse_labels": list(range(20))}
    cifar(monkeypatch, tmp_path, datasets.CIFAR100, labels)
    fine = load(name="cifar100", root=str(tmp_path))
    coarse = load(name="cifar100", root=str(tmp_path), coarse_labels=True)
    assert (fine.num_classes, coarse.num_classes) == (100, 20)
    assert fine.train.y.tolist() == list(range(80, 100))
    assert coarse.train.y.tolist() == coarse.test.y.tolist() == list(range(20))


def test_a_download_that_fails(tmp_path, monkeypatch):
    def fail(self):
        raise RuntimeError("no route to host")

    monkeypatch.setattr(datasets.CIFAR10, "download", fail)
    with pytest.raises(UserError, match="no route to host"):
        load(name="cifar10", root=str(tmp_path), download=True)


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "folder"), [("mnist", "MNIST"), ("fashion_mnist", "FashionMNIST")])
def test_real_data(name, folder):
    if not (REAL / folder).is_dir():
        pytest.skip(f"../shared/data/{folder} is absent")
    source = load(name=name, root=str(REAL))
    assert source.train.x.shape == (60_000, 1, 28, 28)
    assert source.test.x.shape == (10_000, 1, 28, 28)
    assert source.train.x.dtype == torch.uint8
    assert source.train.x.nbytes == 60_000 * 784
    assert source.train.y.bincount().min() > 5000
    if name == "mnist":
        seen = source.normalize(source.train.x)
        assert seen.mean().item() == pytest.approx(0, abs=1e-3)
        assert seen.std().item() == pytest.approx(1, abs=1e-3)


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for part, count in (("train", 3), ("test", 2)):
        for label in ("ape", "bee"):
            (tmp_path / part / label).mkdir(parents=True)
            for number in range(count):
                pixels = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / label / f"{number}.png")
    return tmp_path


def test_image_folder(folder):
    source = load(name="folder", path=str(folder))
    assert source.train.x.shape == (6, 3, 6, 8)
    assert source.train.x.dtype == torch.uint8
    assert source.train.y.tolist() == [0, 0, 0, 1, 1, 1]
    assert source.test.y.tolist() == [0, 0, 1, 1]
    assert source.num_classes == 2
    stored = np.asarray(Image.open(folder / "train/bee/1.png"))
    assert np.array_equal(source.train.x[4].numpy(), stored.transpose(2, 0, 1))
    seen = source.normalize(source.train.x).double()
    torch.testing.assert_close(seen.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(seen.std((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-5, rtol=0)


def test_grey_images_have_one_channel(folder):
    for file in folder.rglob("*.png"):
        Image.open(file).convert("L").save(file)
    source = load(name="folder", path=str(folder))
    assert source.train.x.shape == (6, 1, 6, 8)
    assert source.test.x.shape == (4, 1, 6, 8)
    assert np.array_equal(source.train.x[0, 0].numpy(), np.asarray(Image.open(folder / "train/ape/0.png")))


def test_grey_images_among_coloured_ones(folder):
    file = folder / "train/ape/0.png"
    Image.open(file).convert("L").save(file)
    assert load(name="folder", path=str(folder)).train.x.shape == (6, 3, 6, 8)


def test_an_image_folder_without_test(folder):
    for file in (folder / "test").rglob("*.png"):
        file.unlink()
    for label in ("ape", "bee"):
        (folder / "test" / label).rmdir()
    with pytest.raises(UserError, match=r"test has no images"):
        load(name="folder", path=str(folder))
    (folder / "test").rmdir()
    assert load(name="folder", path=str(folder)).test is None


def test_images_of_two_sizes_name_the_first_offender(folder):
    for name in ("train/bee/0.png", "train/bee/2.png"):
        Image.new("RGB", (7, 6)).save(folder / name)
    with pytest.raises(UserError, match=r"bee/0.png has 7 x 6 pixels but the first image 8 x 6"):
        load(name="folder", path=str(folder))


def test_test_images_of_another_size(folder):
    for file in (folder / "test").rglob("*.png"):
        Image.new("RGB", (9, 9)).save(file)
    with pytest.raises(UserError, match=r"test has inputs \[3, 9, 9\]"):
        load(name="folder", path=str(folder))


@pytest.mark.parametrize("keep", [0, 20, 60])
def test_a_broken_image_is_named(folder, keep):
    file = folder / "train/bee/2.png"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"cannot read the image .*bee/2.png"):
        load(name="folder", path=str(folder))


def test_grey_images_of_sixteen_bits_are_scaled(folder):
    Image.fromarray(np.full((6, 8), 65535, dtype=np.uint16)).save(folder / "train/ape/1.png")
    assert int(load(name="folder", path=str(folder)).train.x.max()) == 255


def test_an_unknown_test_class(folder):
    shutil.copytree(folder / "test" / "ape", folder / "test" / "cat")
    with pytest.raises(UserError, match=r"test/cat is no class of the training set"):
        load(name="folder", path=str(folder))


@pytest.mark.parametrize("content", ["nothing", "no classes", "empty class"])
def test_a_folder_without_images(tmp_path, content):
    if content != "nothing":
        (tmp_path / "train").mkdir()
    if content == "empty class":
        (tmp_path / "train" / "ape").mkdir()
    with pytest.raises(UserError, match=str(tmp_path)):
        load(name="folder", path=str(tmp_path))


def png_header(side):
    """The head of a PNG file, which promises a picture; what follows does not matter."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", b"\x78\x9c"))
    parts = [struct.pack(">I", len(c)) + n + c + struct.pack(">I", zlib.crc32(n + c)) for n, c in chunks]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("name", ["train/ape/0.png", "train/bee/2.png"])
@pytest.mark.parametrize("side", [10_000, 60_000])
def test_pictures_that_are_decompression_bombs(folder, name, side):
    (folder / name).write_bytes(png_header(side))
    with pytest.raises(UserError, match=f"cannot read the image .*{name}: Decompression.* exceeds limit"):
        load(name="folder", path=str(folder))


def test_animations(folder):
    frames = [Image.new("RGB", (8, 6), colour) for colour in ("red", "green", "blue")]
    frames[0].save(folder / "train/ape/1.png", save_all=True, append_images=frames[1:])
    with pytest.raises(UserError, match=r"ape/1.png must be one picture, and it has 3 frames"):
        load(name="folder", path=str(folder))


def test_more_images_than_memory(folder, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: 10)
    with pytest.raises(UserError, match=r"train: 6 images would take .* and this process may have 0\.0 GiB"):
        load(name="folder", path=str(folder))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        struct.pack(">ii", 0x0803, 12),
        struct.pack(">iiii", 0x0803, 2**31 - 1, 2**31 - 1, 2**31 - 1),
        struct.pack(">iiii", 0x0803, -12, -28, 28),
        struct.pack(">iiii", 0x0D03, 12, 28, 28),
        struct.pack(">iiii", 0x0FF3, 12, 28, 28),
        struct.pack(">ii", 0x0801, 12 * 784),
    ],
)
def test_idx_files_of_another_kind(mnist, head):
    (mnist / "MNIST/raw/train-images-idx3-ubyte").write_bytes(head + bytes(12 * 784))
    with pytest.raises(UserError, match="MNIST/raw"):
        load(name="mnist", root=str(mnist))


def test_hidden_files_and_folders_are_neither_classes_nor_examples(folder, caplog):
    plain = load(name="folder", path=str(folder))
    picture = folder / "train/ape/0.png"
    for place in (
        "train/.ipynb_checkpoints/a-checkpoint.png", "train/ape/.ipynb_checkpoints/0-checkpoint.png",
        "train/@eaDir/0.png/SYNOFILE_THUMB_M.png", "train/__MACOSX/ape/0.png",
        "train/.Trash-1000/files/0.png",
        "train/ape/._0.png", "train/#recycle/0.png", "train/$RECYCLE.BIN/0.png", "test/.DS_Store",
        "train/ape/Thumbs.db", "notes.txt",
    ):  # fmt: skip
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(picture, folder / place)
    (folder / "train/ape/again").symlink_to("..")
    found = load(name="folder", path=str(folder))
    assert found.num_classes == plain.num_classes
    assert torch.equal(found.train.x, plain.train.x)
    assert torch.equal(found.test.x, plain.test.x)
    assert "not used: " in caplog.text
    assert "notes.txt" in caplog.text


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_a_folder_of_validation_images(folder, name):
    shutil.copytree(folder / "test", folder / name)
    source = load(name="folder", path=str(folder))
    assert torch.equal(source.validation.x, source.test.x)


def test_names_of_parts_in_any_case_and_twice(folder):
    (folder / "test").rename(folder / "Test")
    assert load(name="folder", path=str(folder)).test is not None
    shutil.copytree(folder / "Test", folder / "testing")
    with pytest.raises(UserError, match=r"Test and .*testing are both a test set"):
        load(name="folder", path=str(folder))


def test_images_are_resized_and_turned(folder):
    image = Image.new("RGB", (20, 10))
    image.putpixel((0, 0), (255, 255, 255))
    exif = image.getexif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    image.save(folder / "train/ape/big.JPG", exif=exif, quality=95)
    with pytest.raises(UserError, match=r"set data.image_size, such as \[6, 8\]"):
        load(name="folder", path=str(folder))
    source = load(name="folder", path=str(folder), image_size=[20, 10])
    assert source.train.x.shape[1:] == (3, 20, 10)
    turned = source.train.x[source.train.y == 0][-1]
    assert int(turned[0, 0, -1]) > 100 > int(turned[0, -1, 0])
    with pytest.raises(UserError, match=r"data.image_size must not be set for data.name mnist: it is"):
        DataConfig(name="mnist", image_size=[3, 3])
