"""The registry, and the checks that hold for every data set."""

import numpy as np
import pytest

import focalgeo.data.registry as registry
from focalgeo.data import check_split, load_dataset
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("digts", "'digits'"),
        ("Digits", "'digits'"),
        ("cifar10", "'tfds:cifar10'"),
        ("tfd:mnist", "'tfds:mnist'"),
        ("fold:x/y", "'folder:x/y'"),
        ("", "did you mean"),
        ("folders:", "'folder:<path>'"),
        ("tfd:", "'tfds:<name>'"),
        ("20newsgroups", "'newsgroups'"),
        ("sst", "'sst:<path>'"),
        ("tiny-imagenet", "'tiny_imagenet:<path>'"),
        ("cluster", "'clusters:<deviation>'"),
        ("sst2:trees", "'sst:trees'"),
    ],
)
def test_unknown_name_lists_the_kinds_and_the_nearest(name, nearest):
    with pytest.raises(InputError, match=r"digits, newsgroups, tfds:<name>, folder:<path>, .*sst:<path>") as caught:
        load_dataset(name)
    assert nearest in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_path_without_its_kind_is_recognised(tmp_path):
    with pytest.raises(InputError, match=f"did you mean 'folder:{tmp_path}'"):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize(("name", "size"), [("digits", 16), ("digits", 0), ("folder:x", -1)])
def test_image_size_out_of_place(name, size):
    with pytest.raises(InputError, match="image_size"):
        load_dataset(name, image_size=size)


@pytest.mark.parametrize("name", ["digits", "folder:x", "tfds:x", "tiny_imagenet:x", "clusters:1"])
@pytest.mark.parametrize("option", ["max_words", "max_length"])
def test_options_of_words_apply_to_words_only(name, option):
    with pytest.raises(InputError, match=rf"^{option} 7 does not apply to {name}: leave it out$"):
        load_dataset(name, **{option: 7})


def test_images_have_no_vocabulary():
    assert load_dataset("digits").vocabulary == ()


def good():
    return Split(np.zeros((4, 2, 2, 1), np.float32), np.array([0, 1, 2, 1], np.int32))


def nodes(*labels):
    return Split(np.zeros((len(labels), 3, 3), np.int32), np.array(labels, np.int32))


def test_good_split_passes():
    check_split(good(), 3)
    check_split(nodes([-1, 2, 0], [-1, -1, 1]), 3)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (([0, -1, 1], [-1, -1, -1]), r"^here: example 1 has no label at any node"),
        (([0, -1, 1], [-1, 3, 1]), r"^here: example 1 has label 3"),
        (([0, -2, 1], [-1, 1, 1]), r"^here: example 0 has label -2"),
    ],
)
def test_bad_labels_of_nodes(labels, message):
    with pytest.raises(InputError, match=message):
        check_split(nodes(*labels), 3, where="here")


@pytest.mark.parametrize(
    ("change", "num_classes", "message"),
    [
        ({"y": np.array([0, 1, 3, 1])}, 3, r"^here: example 2 has label 3 but 3 classes"),
        ({"y": np.array([0, -1, 2, 1])}, 3, r"^here: example 1 has label -1"),
        ({"y": np.array([0.0, 1, 2, 1])}, 3, r"float64"),
        ({"y": np.array([0, 1, 2])}, 3, r"4 examples but 3 labels"),
        ({"x": np.zeros((0, 2, 2, 1)), "y": np.zeros(0, np.int32)}, 3, r"empty"),
        ({}, 1, r"1 class"),
        ({"x": np.where(np.arange(16).reshape(4, 2, 2, 1) == 9, np.nan, 0)}, 3, r"NaN.* first is example 2"),
        ({"x": np.where(np.arange(16).reshape(4, 2, 2, 1) == 0, np.inf, 0)}, 3, r"infinite.* first is example 0"),
    ],
)
def test_bad_splits(change, num_classes, message):
    with pytest.raises(InputError, match=message):
        check_split(good()._replace(**change), num_classes, where="here")


@pytest.mark.parametrize(
    ("labels", "message"), [([0, 1, 2, 5], "label 5"), ([1, 1, 1, 1], "one class only, b"), ([], "empty")]
)
def test_checks_run_on_loading(monkeypatch, labels, message):
    split = Split(np.zeros((len(labels), 2, 2, 1), np.uint8), np.array(labels, np.int32))
    monkeypatch.setattr(registry, "read_digits", lambda: RawDataset({"train": split}, ("a", "b", "c"), ""))
    with pytest.raises(InputError, match=message):
        load_dataset("digits")
