import io
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from flsel.data.data_config import DataConfig
from flsel.data.federate import federate
from flsel.data.sources import load_source
from flsel.errors import UserError


def load(**config):
    return load_source(DataConfig(**config), clients=None, seed=0)


def arrays(**changes):
    rng = np.random.default_rng(0)
    content = {
        "x_train": rng.integers(0, 256, (9, 4, 5), dtype=np.uint8),
        "y_train": np.arange(9) % 3,
        "x_test": rng.integers(0, 256, (4, 4, 5), dtype=np.uint8),
        "y_test": np.array([0, 1, 2, 0]),
        **changes,
    }
    return {name: array for name, array in content.items() if array is not None}


def npz(tmp_path, shape=None, **changes):
    np.savez(tmp_path / "d.npz", **arrays(**changes))
    return load(name="npz", path=str(tmp_path / "d.npz"), shape=shape)


def test_npz_of_grey_images(tmp_path):
    source = npz(tmp_path)
    assert source.train.x.shape == (9, 1, 4, 5)
    assert source.train.x.dtype == torch.uint8
    assert source.train.y.dtype == torch.int64
    assert source.num_classes == 3
    assert source.name == "d"
    assert np.array_equal(source.test.x[:, 0].numpy(), arrays()["x_test"])
    seen = source.normalize(source.train.x).double()
    assert seen.mean() == pytest.approx(0, abs=1e-6)
    assert seen.std(correction=0) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((9, 4, 5, 3), (9, 3, 4, 5)), ((9, 3, 4, 5), (9, 3, 4, 5)), ((9, 1, 4, 5), (9, 1, 4, 5))],
)
def test_npz_of_images_in_either_layout(tmp_path, shape, expected):
    x = np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)
    source = npz(tmp_path, x_train=x, x_test=None, y_test=None)
    assert source.train.x.shape == expected
    assert source.train.x.is_contiguous()
    stored = x.transpose(0, 3, 1, 2) if shape[-1] == 3 else x
    assert np.array_equal(source.train.x.numpy(), stored)
    assert source.test is None


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f8"])
def test_npz_of_floats_is_left_as_it_is(tmp_path, dtype):
    x = np.random.default_rng(1).normal(size=(9, 7)).astype(dtype)
    source = npz(tmp_path, x_train=x, x_test=x[:4])
    assert source.train.x.dtype == torch.float32
    assert np.array_equal(source.normalize(source.train.x).numpy(), x.astype(np.float32))


def test_npz_of_tokens(tmp_path):
    x = np.arange(18, dtype=np.int32).reshape(9, 2)
    source = npz(tmp_path, x_train=x, x_test=x[:4])
    assert source.normalize(source.train.x).dtype == torch.int64


def test_npz_of_flat_images(tmp_path):
    x = np.random.default_rng(1).random((9, 20), dtype=np.float32)
    assert npz(tmp_path, shape=(1, 4, 5), x_train=x, x_test=x[:4]).train.x.shape == (9, 1, 4, 5)
    with pytest.raises(UserError, match=r"data.shape \[1, 5, 5\] does not fit .*d.npz: x_train"):
        npz(tmp_path, shape=(1, 5, 5), x_train=x, x_test=x[:4])


def test_a_constant_channel_is_only_centred(tmp_path):
    x = np.full((9, 4, 5), 51, dtype=np.uint8)
    source = npz(tmp_path, x_train=x, x_test=None, y_test=None)
    assert source.normalize(source.train.x).abs().max() < 1e-6


NAN = np.zeros((9, 7))
NAN[3, 2] = np.nan
LARGE = np.zeros((9, 7))
LARGE[5] = 1e300
FLOATS = {"x_train": np.zeros((9, 7)), "x_test": np.zeros((4, 7))}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": None}, r"must have the arrays x_train and y_train .*, found y_train, x_test, y_test"),
        ({"y_train": None}, "must have the arrays x_train and y_train .*, found x_train, x_test, y_test"),
        ({"y_test": None}, "must have the array y_test"),
        ({"x_test": None}, "must have the array x_test"),
        ({"y_train": np.arange(8) % 3}, "x_train, y_train has 9 inputs but 8 labels"),
        ({"y_train": np.full(9, -1)}, "y_train has the label -1"),
        ({"y_test": np.array([0, 1, 2, 3])}, r"y_test has the label 3, but labels must be in 0..2"),
        ({"y_train": np.array(list("abcabcabc"))}, "y_train must hold numbers"),
        ({"x_train": np.array(list("abcabcabc"))}, "x_train must hold numbers"),
        ({"x_train": np.float64(1)}, "x_train must have one row per example"),
        ({"x_train": np.zeros((9, 4, 5, 2), dtype=np.uint8)}, r"must be images.*\[9, 4, 5, 2\]"),
        ({**FLOATS, "x_train": NAN}, "x_train, y_train has NaN or infinite inputs, first in example 3"),
        ({**FLOATS, "x_train": LARGE}, "NaN or infinite inputs, first in example 5"),
        ({**FLOATS, "x_test": np.full((4, 7), -np.inf)}, "x_test, y_test has NaN or infinite inputs"),
        ({**FLOATS, "x_test": np.zeros((4, 6))}, r"npz: test has inputs \[6\]"),
        ({"x_train": np.zeros((0, 4, 5)), "y_train": np.zeros(0)}, "y_train has no examples"),
        ({"x_test": np.zeros((0, 4, 5)), "y_test": np.zeros(0)}, "x_test, y_test has no examples"),
    ],
)
def test_malformed_npz(tmp_path, changes, message):
    with pytest.raises(UserError, match=message) as error:
        npz(tmp_path, **changes)
    assert "d.npz" in str(error.value)


def test_unreadable_npz(tmp_path):
    file = tmp_path / "d.npz"
    with pytest.raises(UserError, match="there is no file"):
        load(name="npz", path=str(file))
    np.savez(file, **arrays())
    whole = file.read_bytes()
    for broken in (b"", b"no archive", whole[: len(whole) // 2], whole[:300] + b"\0" * 200 + whole[500:]):
        file.write_bytes(broken)
        with pytest.raises(UserError, match=r"d\.npz"):
            load(name="npz", path=str(file))
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(UserError, match="named arrays"):
        load(name="npz", path=str(tmp_path / "one.npy"))


def test_npz_never_unpickles(tmp_path):
    with pytest.raises(UserError, match="y_train must hold numbers"):
        npz(tmp_path, y_train=np.array([{}] * 9, dtype=object))


def archive(tmp_path, **members):
    """Write an npz file of raw members beside good arrays."""
    with zipfile.ZipFile(tmp_path / "d.npz", "w", zipfile.ZIP_DEFLATED) as file:
        for name, array in arrays().items():
            stream = io.BytesIO()
            np.save(stream, array)
            content = members.get(name, stream.getvalue())
            if content is not None:
                file.writestr(f"{name}.npy", content)
    return tmp_path / "d.npz"


def header(shape, descr="'|u1'", version=1, length=None, order=False):
    """The header of a member, true or not."""
    text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}\n".encode()
    size = struct.pack("<H" if version == 1 else "<I", len(text) if length is None else length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "y_train cannot be read"),
        (b"no array at all", "y_train cannot be read: the magic string is not correct"),
        (header((9,)), r"y_train is damaged: its header promises shape \[9\] of uint8, but 0 bytes follow"),
        (
            header((10**13,)) + bytes(9),
            "y_train is damaged: its header promises shape .*, but 9 bytes follow",
        ),
        (header((-3, -3)) + bytes(9), "y_train is damaged: its header promises shape"),
        (header(tuple(range(70))) + bytes(9), "y_train is damaged"),
        (header((9,), length=2**32 - 1, version=2) + bytes(9), "y_train cannot be read: EOF"),
        (header((9,), "'|u1', 'more': 3") + bytes(9), "y_train cannot be read: Header does not contain"),
        (header((9,), "[('a', '|u1')]") + bytes(9), "y_train must hold numbers"),
        (header((9,), "'|O'") + pickle.dumps([1]), "y_train must hold numbers"),
        (header((9,), "'nonsense'") + bytes(9), "y_train cannot be read"),
        (header("(" * 90 + "9" + ")" * 90) + bytes(9), "y_train cannot be read"),
        (
            header((9,), version=3) + bytes(9),
            "y_train must be an array of numbers in NumPy's format 1.0 or 2",
        ),
        (b"\x93NUMPY\x09\x00" + bytes(9), "y_train must be an array of numbers in NumPy's format"),
    ],
)
def test_npz_members_that_are_no_arrays(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as error:
        load(name="npz", path=str(archive(tmp_path, y_train=content)))
    assert "d.npz: y_train" in str(error.value)
    assert len(str(error.value)) < 600


@pytest.mark.parametrize(
    ("group", "file"), [(None, ""), ("3:cpu:/\n0::/a/b\n", "a"), ("4:memory:/b\n0::/\n", "memory")]
)
def test_an_npz_file_that_promises_more_than_the_memory(tmp_path, monkeypatch, group, file):
    # A real one would take minutes to write: what is promised is counted before anything is read.
    path = archive(tmp_path)
    if group is None:
        monkeypatch.setattr("os.sysconf", lambda name: 10)
    else:
        (tmp_path / "group").write_text(group)
        (tmp_path / file / "b").mkdir(parents=True)
        for limit in (tmp_path / file / "memory.max", tmp_path / file / "b/memory.limit_in_bytes"):
            limit.write_text("100\n")
        (tmp_path / file / "b/memory.max").write_text("max\n")
        monkeypatch.setattr("flsel.data.check_arrays._OWN_GROUPS", tmp_path / "group")
        monkeypatch.setattr("flsel.data.check_arrays._GROUPS", tmp_path)
    with pytest.raises(
        UserError, match=r"x_train would take .* GiB of memory, and this process may have 0\.0 GiB"
    ):
        load(name="npz", path=str(path))


@pytest.mark.parametrize(("offset", "value"), [(6, 1), (8, 99)], ids=["encrypted", "unknown compression"])
def test_archives_that_cannot_be_unpacked(tmp_path, offset, value):
    path = archive(tmp_path)
    raw = bytearray(path.read_bytes())
    for signature, shift in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        at = raw.find(signature)
        while at >= 0:
            raw[at + offset + shift] = value
            at = raw.find(signature, at + 4)
    path.write_bytes(raw)
    with pytest.raises(UserError, match=r"d\.npz: .* cannot be read: .*(encrypted|compression)"):
        load(name="npz", path=str(path))


def test_arrays_in_any_order_and_format_are_read(tmp_path):
    x = np.asfortranarray(np.random.default_rng(0).normal(size=(9, 7)))
    stream = io.BytesIO()
    np.lib.format.write_array(stream, x, version=(2, 0))
    path = archive(tmp_path, x_train=stream.getvalue(), x_test=None, y_test=None)
    assert np.array_equal(load(name="npz", path=str(path)).train.x.numpy(), x.astype(np.float32))


def leaf_file(users):
    data = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    return {"users": list(users), "num_samples": [len(y) for _, y in users.values()], "user_data": data}


TRAIN = [
    leaf_file({"ann": ([[0.5, 1, 0, 0], [0, 0, 1, 0]], [0, 1]), "bob": ([[1, 1, 1, 1]], [2])}),
    leaf_file({"cy": ([[0, 0, 0, 0.25]] * 3, [1, 1, 0])}),
]
TEST = [leaf_file({"ann": ([[0, 0, 0, 0.5]], [3]), "cy": ([[1, 0, 0, 0.5]], [0])})]


def leaf(path, train, test=None, shape=None):
    for part, files in (("train", train), ("test", test)):
        if files is not None:
            (path / part).mkdir()
            for number, content in enumerate(files):
                text = content if isinstance(content, str) else json.dumps(content)
                (path / part / f"part_{number}.json").write_text(text)
    return load(name="leaf", path=str(path), shape=shape)


def test_leaf(tmp_path):
    source = leaf(tmp_path, TRAIN, TEST)
    assert source.owner.tolist() == [0, 0, 1, 2, 2, 2]
    assert source.train.y.tolist() == [0, 1, 2, 1, 1, 0]
    assert source.train.x.dtype == torch.float32
    assert source.train.x[0].tolist() == [0.5, 1, 0, 0]
    assert source.test.y.tolist() == [3, 0]
    assert source.num_classes == 4
    assert torch.equal(source.normalize(source.train.x), source.train.x)


def test_leaf_test_data_remain_the_users(tmp_path):
    test = [
        leaf_file(
            {"cy": ([[0.5, 0, 0, 1]] * 2, [0, 1]), "eve": ([[0.5, 1, 0, 0]], [2]), "ann": ([[0.5] * 4], [1])}
        )
    ]
    source = leaf(tmp_path, TRAIN, test)
    assert source.test_owner.tolist() == [2, 2, -1, 0]
    data = federate(source, DataConfig(server=0, validation=0), deal=None, seed=0)
    assert [shard.tolist() for shard in data.client_tests] == [[3], [], [0, 1]]
    drawn = federate(source, DataConfig(server=0, validation=0), deal=None, seed=0, clients=2)
    kept = sorted({tuple(shard.tolist()) for shard in drawn.client_tests})
    assert len(drawn.client_tests) == 2
    assert set(kept) < {(3,), (), (0, 1)}
    dealt = federate(
        source, DataConfig(server=0, validation=0), deal=lambda y, rng: [np.arange(len(y))], seed=0
    )
    assert dealt.client_tests is None


def test_leaf_without_test_and_with_a_shape(tmp_path):
    source = leaf(tmp_path, TRAIN, shape=(1, 2, 2))
    assert source.test is None
    assert source.num_classes == 3
    assert source.train.x.shape == (6, 1, 2, 2)


def test_leaf_of_tokens(tmp_path):
    assert leaf(tmp_path, [leaf_file({"ann": ([[5, 6]], [0])})]).train.x.dtype == torch.int64


def changed(**changes):
    return {**TRAIN[0], **changes}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"users": [', "is not a readable JSON file"),
        ([1, 2], "must be a LEAF file with the keys"),
        ({"users": [], "num_samples": []}, "must be a LEAF file with the keys"),
        (changed(users="ann"), "must have lists users and num_samples"),
        (changed(num_samples=[2]), "of one length"),
        (changed(num_samples=[2, 5]), "user 'bob' has 1 inputs, 1 labels and num_samples 5"),
        (changed(users=["ann", "dan"]), "user 'dan' must have lists x and y"),
        (changed(user_data=[]), "user 'ann' must have lists x and y"),
        (leaf_file({"ann": ([[1, 2], [3]], [0, 1])}), "all examples of x alike"),
        (
            {**leaf_file({"ann": ([1], [0])}), "user_data": {"ann": {"x": 1, "y": 2}}},
            "must have lists x and y",
        ),
        (leaf_file({"ann": ([[1.0, 2.0]], [0]), "bob": ([[1.0]], [0])}), "one shape, but users differ"),
        (
            leaf_file({"ann": (["some", "text", "a"], [0, 1, 2])}),
            "texts of one length, got 1 to 4 characters",
        ),
        (
            leaf_file({"ann": (["ab"], [0]), "bob": ([3], [0])}),
            "texts or numbers as x of all users, got both",
        ),
        (leaf_file({"ann": ([{}], [0])}), "x must hold numbers"),
        (leaf_file({"ann": ([[1.0]], [-2])}), "has the label -2"),
        (leaf_file({"ann": ([[float("nan")]], [0])}), "NaN or infinite inputs"),
        (leaf_file({}), "has no examples"),
    ],
)
def test_malformed_leaf(tmp_path, content, message):
    with pytest.raises(UserError, match=message) as error:
        leaf(tmp_path, [content])
    assert str(tmp_path) in str(error.value)


def test_leaf_users_appear_once(tmp_path):
    with pytest.raises(UserError, match=r"part_1.json: user 'ann' appears twice"):
        leaf(tmp_path, [TRAIN[0], TRAIN[0]])


def test_leaf_test_data_must_fit(tmp_path):
    with pytest.raises(UserError, match=r"test has inputs \[2\]"):
        leaf(tmp_path, TRAIN, [leaf_file({"ann": ([[1.0, 2.0]], [0])})])


def test_leaf_missing(tmp_path):
    with pytest.raises(UserError, match=r"train must hold LEAF files"):
        load(name="leaf", path=str(tmp_path))


def test_labels_in_a_column_and_boolean_features(tmp_path):
    features = np.arange(18).reshape(9, 2) % 2 == 0
    source = npz(tmp_path, x_train=features, x_test=features[:4], y_train=(np.arange(9) % 3)[:, None])
    assert source.train.x.dtype == torch.float32
    assert source.train.y.tolist() == [0, 1, 2] * 3


def test_npz_by_other_names_with_a_validation_set(tmp_path, caplog):
    given = {
        "train_images": np.zeros((6, 4, 5), np.uint8), "train_labels": np.arange(6)[:, None] % 2,
        "val_images": np.zeros((3, 4, 5), np.uint8), "val_labels": np.zeros((3, 1), int),
        "readme": np.ones(2),
    }  # fmt: skip
    np.savez(tmp_path / "medmnist.npz", **given)
    source = load(name="npz", path=str(tmp_path / "medmnist.npz"))
    assert (len(source.train), len(source.validation), source.test) == (6, 3, None)
    assert "not used: readme" in caplog.text


def test_leaf_of_texts(tmp_path):
    train = leaf_file({"ann": (["to b", "o be"], ["e", " "]), "bob": (["e, o"], ["r"]), "eve": ([], [])})
    source = leaf(tmp_path, [train], [leaf_file({"new": (["r to"], ["o"])})])
    known = sorted(set("to bo bee, orr too e"))
    expected = [[known.index(letter) for letter in text] for text in ("to b", "o be", "e, o")]
    assert source.train.x.tolist() == expected
    assert source.train.y.tolist() == [known.index(letter) for letter in "e r"]
    assert source.test.x.tolist() == [[known.index(letter) for letter in "r to"]]
    assert source.owner.tolist() == [0, 0, 1]


def test_a_leaf_user_without_training_examples_is_named(tmp_path, caplog):
    users = {"ann": ([[1.0]], [0]), "bob": ([], []), "eve": ([[2.0]], [1])}
    source = leaf(tmp_path, [leaf_file(users)], [leaf_file({"bob": ([[3.0]], [1]), "ann": ([], [])})])
    assert source.owner.tolist() == [0, 1]
    assert "not used: user bob without training examples" in caplog.text
    more = leaf_file(users)
    more["user_data"] |= {"ann": more["user_data"]["ann"] | {"mask": [1]}, "zoe": more["user_data"]["ann"]}
    (tmp_path / "train/part_0.json").write_text(json.dumps(more))
    for name in ("._data.json", "notes.txt"):
        (tmp_path / "train" / name).write_bytes(b"\0")
    assert load(name="leaf", path=str(tmp_path)).owner.tolist() == [0, 1]
    assert "not used: ._data.json, notes.txt, user zoe, who is not among the users of" in caplog.text
    assert "mask of the users of" in caplog.text
    assert len(source.test) == 1


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (["01.jpg", "02.jpg"], [0, 1], "x are texts such as '01.jpg' and y numbers"),
        (["1.jpg", "02.jpg"], [0, 1], "x must be numbers or texts of one length, got 5 to 6 characters"),
        ([[1.0], [2.0]], ["a", "b"], "y are texts such as 'a' and x numbers"),
        (
            [["12", "Mon", "no", "ann", "a day", "training"]],
            [0],
            "got ['12', 'Mon', 'no', 'ann', 'a day', 'train",
        ),
    ],
)
def test_words_and_names_of_files_are_no_characters(x, y, said, tmp_path):
    with pytest.raises(UserError) as error:
        leaf(tmp_path, [leaf_file({"ann": (x, y)})])
    assert said in str(error.value)
    assert "docs/models-and-data.md turns the words of Sent140" in str(error.value)


def test_the_page_turns_words_and_names_of_pictures_into_numbers(tmp_path):
    page = (Path(__file__).parents[2] / "docs/models-and-data.md").read_text()
    made: dict[str, object] = {}
    exec(page[page.index("# my_leaf.py") :].partition("```")[0], made)
    row = ["12", "Mon", "no", "ann", "A day out", "training"]
    for part, users in (("train", {"bob": 2, "ann": 1}), ("test", {"ann": 1, "eve": 1})):
        for name, x in (("sent140", row), ("celeba", "1.png")):
            (tmp_path / name / part).mkdir(parents=True)
            content = leaf_file({user: ([x] * n, [1] * n) for user, n in users.items()})
            (tmp_path / name / part / "a.json").write_text(json.dumps(content))
    Image.new("RGB", (9, 5), "red").save(tmp_path / "1.png")
    for train, test in (
        made["sent140"](tmp_path / "sent140", length=4),
        made["celeba"](tmp_path / "celeba", tmp_path, size=3),
    ):
        assert (train.owner, test.owner) == ([0, 0, 1], [1, -1])
        assert train[0][0].shape in ((4,), (3, 3, 3))
        assert len({*train[0][0].flatten().tolist()}) in (4, 2)
