"""Outputs of a classifier from files of every kind: what they mean, and one line for each class of fault in them."""

import gzip
import hashlib
import json
import os
import pickle
import re
import sys
import time
import types
from pathlib import Path

import numpy as np
import pandas
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from numpy.testing import assert_allclose, assert_array_equal
from safetensors.numpy import save_file
from scipy.optimize import minimize_scalar
from scipy.special import expit, log_softmax, softmax

from focalgeo.calibration import log_probabilities
from focalgeo.calibration.methods.zeros import chosen
from focalgeo.data import sources
from focalgeo.data.logits_files import Keys, _unit, read_calibrated, read_outputs
from focalgeo.types import PROBABILITY_FLOOR, InputError, floored_log

N = 60
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 2, (N, 3)).astype(np.float32)
LABELS = (LOGITS + RNG.gumbel(size=LOGITS.shape)).argmax(1)
PROBS = softmax(LOGITS, axis=1)
CLASSES = ("owl", "cat", "a_dog")
NAMES = np.array(CLASSES)[LABELS]
GROUP = RNG.choice(["NA", "north pole", "01", "é,"], N)
SCORE = np.float64(LOGITS[:, 1] - LOGITS[:, 0])
TRUTH = (RNG.random(N) < expit(SCORE)).astype(int)
AT_4 = np.arange(N) == 4  # a row of which a fault is made: line 6 of a csv


def read(source, *, where="val", **keys):
    return read_outputs(source, Keys(**keys), where=where)


def refused(source, **keys):
    """The one line that answers a bad file."""
    with pytest.raises(InputError) as caught:
        read(source, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def npz(path, **arrays):
    arrays = {"logits": LOGITS, "labels": LABELS, **arrays}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return path


def csv(path, *, options=types.MappingProxyType({}), **columns):
    pandas.DataFrame(columns).to_csv(path, index=False, **options)
    return path


def jsonl(path, rows):
    Path(path).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def named(prefix, names=CLASSES, values=LOGITS):
    return {f"{prefix}{name}": values[:, k] for k, name in enumerate(names)}


WHOLE = {"labels": LABELS, "group": GROUP, **named("logits_", range(3), np.float64(LOGITS))}
LISTS = pandas.DataFrame({"labels": LABELS, "group": GROUP, "logits": LOGITS.tolist()})
FORMATS = {
    "a.npz": lambda path: npz(path, group=GROUP),
    "A.CSV": lambda path: csv(path, **WHOLE),
    "a,labels=2.csv": lambda path: csv(
        path, **dict(reversed(WHOLE.items())), options={"encoding": "utf-8-sig", "quoting": 1}
    ),
    "a.jsonl": lambda path: jsonl(path, LISTS.to_dict("records")),
    "a.parquet": LISTS.to_parquet,
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_what_was_written(name):
    if "parquet" in name:
        pytest.importorskip("pyarrow")
    FORMATS[name](name)
    found = read(name)
    assert_array_equal(found.logits, LOGITS)
    assert_array_equal(found.labels, LABELS)
    assert_array_equal(found.group, GROUP)
    assert (found.logits.dtype, found.labels.dtype, found.kind) == (np.float32, np.int32, "logits")
    assert (found.unit, found.unread, found.looks_like_probs) == (0, (), False)
    assert found.checksum == f"sha256:{hashlib.sha256(Path(name).read_bytes()).hexdigest()}"


def test_files_and_arrays_are_named_and_others_are_not_read():
    objects = np.array([{}], object)
    found = read(npz("a.npz", z=LOGITS, y=LABELS, site=LABELS % 3, notes=objects), logits="z", labels="y",
                 group="site")  # fmt: skip
    assert found.group.tolist() == [str(label % 3) for label in LABELS]
    assert found.unread == ("logits", "labels", "notes")
    Path("c,d=e").mkdir()
    for name, array in (("z", LOGITS), ("c,d=e/y=,", LABELS), ("g", GROUP)):
        np.save(f"{name}.npy", array)
    pair = read("logits=z.npy, labels=c,d=e/y=,.npy,group=g.npy")
    assert_array_equal(pair.logits, found.logits)
    assert_array_equal(pair.labels, LABELS)
    assert_array_equal(pair.group, GROUP)
    assert pair.checksum.count("sha256:") == 3
    says = "val has no array 'x', only 'logits', 'labels': name the "
    assert refused(npz("b.npz"), logits="x") == f"{says}scores by --logits-key or --probs-key"
    assert refused(npz("b.npz"), group="x") == f"{says}group by --group-key"


@pytest.mark.parametrize("dtype", [np.float32, bfloat16, ">f4"])
def test_other_bytes_of_the_same_numbers_are_read(dtype):
    logits = LOGITS.astype(dtype)
    if dtype != ">f4":
        save_file({"logits": logits, "labels": LABELS}, "a.safetensors")
        assert_array_equal(read("a.safetensors").logits, logits.astype(np.float32))
    found = read(npz("a.npz", logits=logits, labels=LABELS.astype(">i8")))  # NumPy's files name no bfloat16
    assert_array_equal(found.logits, logits.astype(np.float32))
    assert_array_equal(found.labels, LABELS)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_become_their_logarithms(dtype):
    probs = PROBS.astype(dtype)
    probs[0] = np.eye(3)[0]
    found = read(npz("a.npz", logits=None, probs=probs, val=PROBS))
    assert_allclose(found.logits[1:], np.log(PROBS[1:]), atol=1e-6)
    assert_allclose(found.logits[0], [0, *[np.log(1.1754944e-38)] * 2], rtol=1e-6)
    assert (found.kind, found.unit, found.unread) == ("probs", 0, ("val",))
    assert read(npz("b.npz", logits=probs)).looks_like_probs
    assert not read(npz("b.npz", logits=probs + 1)).looks_like_probs
    assert read(npz("b.npz", logits=probs[:, 0], labels=TRUTH)).looks_like_probs
    assert read(npz("b.npz", logits=probs, labels=np.eye(3)[LABELS]), multilabel=True).looks_like_probs
    also = read_calibrated("a.npz", {"val": PROBS.shape}, where="--also=x")
    assert_allclose(also["val"], np.log(PROBS), atol=1e-6)


@pytest.mark.parametrize(
    ("probs", "is_read"),
    [
        ((PROBS.view(np.uint32) & 0xFFFF0000).view(np.float32), True),  # of bfloat16, whose sums are off by 2e-3
        (PROBS * np.float32(1.015), False),
        (np.where(AT_4[:, None], [1, -1e-9, 1e-9], PROBS), True),
        (np.where(AT_4[:, None], [1, -1e-3, 1e-3], PROBS), False),
    ],
)
def test_probabilities_are_judged_by_the_digits_they_hold(probs, is_read):
    npz("p.npz", logits=None, probs=probs, val=probs)
    if is_read:
        assert read("p.npz").kind == "probs"
        return
    assert "probs" in refused("p.npz")
    for shapes in ({"val": PROBS.shape}, {"val": (N, 2)}, {"test": PROBS.shape}):
        with pytest.raises(InputError, match="--also=x"):
            read_calibrated("p.npz", shapes, where="--also=x")


def test_logits_far_from_0_keep_their_differences():
    for offset in (1e7, -1e12):
        found = read(npz("a.npz", logits=LOGITS.astype(np.float64) + offset)).logits
        assert_allclose(found, LOGITS - LOGITS.max(1, keepdims=True), atol=1e-3)


def test_whole_floats_and_one_hot_rows_are_class_numbers():
    for labels in (LABELS.astype(np.float16), np.eye(3)[LABELS]):
        assert_array_equal(read(npz("a.npz", labels=labels)).labels, LABELS)
    # one label 1 in a column of scores is no row
    found = read(npz("b.npz", logits=None, probs=np.linspace(0.1, 0.9, N), labels=AT_4.astype(int)))
    assert_array_equal(found.labels, AT_4)


BAD = {  # a line for each thing that is asked of the arrays of an .npz file, another name of it: of what it holds
    "NaN": ({"logits": LOGITS * np.where(AT_4[:, None], np.nan, 1)}, "the first in row 4"),
    "beyond float32": ({"logits": np.float64(LOGITS) * 1e42}, "beyond 1e.30"),
    "the least float": (
        {"logits": np.where(np.arange(3) == 2, np.finfo("f").min, LOGITS)},
        "give -inf for a class that",
    ),
    "one class": ({"labels": 0 * LABELS + 1}, "all labels are 1, one class"),
    "labels from 1": ({"labels": 1 + LABELS}, "labels run from 1 to 3: with 3 classes give labels from 0 to 2; .*- 1"),
    "another length": ({"labels": LABELS[:-1]}, "one class number for each row"),
    "group's length": ({"group": GROUP[:-1]}, "group is <U10 of shape .59,."),
    "group of two lines": ({"group": np.array(["a\nb"] * N)}, "no name on one line"),
    "group missing": ({"group": np.where(AT_4, np.nan, 1)}, "group '' is no name"),
    "weight": ({"weight": np.where(AT_4, -1.0, 1)}, "weight in row 4 is -1.0: give numbers above 0"),
    "few": ({"logits": LOGITS[:29], "labels": LABELS[:29]}, "has 29 examples, too few"),
    "both": ({"probs": PROBS}, "has logits and probs: say which"),
    "one logit": ({"logits": LOGITS[:, :1]}, "label '2' is none of 0, 1"),
    "percents": ({"logits": None, "probs": 100 * PROBS}, "the first is row 0 with 100: of percents give"),
    "impossible": ({"logits": np.where(np.eye(3)[LABELS], -np.inf, LOGITS)}, "in row 0 no class, or not that of the"),
    "far apart": ({"logits": LOGITS * 1e29}, "no class, or not that of the label, has a score, or one less than 1e"),
    "NaN among labels": ({"labels": np.where(AT_4, np.nan, LABELS)}, "row 4: label 'nan' is no class number"),
    "objects": ({"labels": np.array([None] * N)}, "it holds more than arrays, which could run code"),
}


@pytest.mark.parametrize(("arrays", "says"), BAD.values(), ids=BAD)
def test_bad_arrays_are_one_line(arrays, says):
    with pytest.raises(InputError, match=f"val.*{says}"):
        read(npz("a.npz", **arrays))


SCORES = np.stack([LOGITS[:, :2], LOGITS[::-1, 1:]])
SOFT = softmax(SCORES, axis=2)


@pytest.mark.parametrize(
    ("kind", "scores", "pattern", "several", "expected"),
    [
        ("logits", SCORES, r"classes\] give (.*?), of", False, SOFT.mean(axis=0)[:, 1]),
        ("probs", SOFT, r"classes\] give (.*?), of", False, SOFT.mean(axis=0)[:, 1]),
        ("logits", SCORES, r"2\] (.*) and --task", True, SOFT[..., 1].T.ravel()),
        ("probs", SOFT, r"2\] (.*) and --task", True, SOFT[..., 1].T.ravel()),
        (
            "probs",
            expit(SCORES[0]),
            "give (probs / .*), of several",
            False,
            expit(SCORES[0]).T[1] / expit(SCORES[0]).sum(1),
        ),
    ],
)
def test_fixes_of_scores_work_as_printed(kind, scores, pattern, several, expected):
    arrays = {"logits": None, "labels": np.stack([TRUTH, 1 - TRUTH], 1) if several else TRUTH}
    (fix,) = re.search(pattern, refused(npz("a.npz", **arrays | {kind: scores}))).groups()
    mended = eval(fix, {"scipy": scipy, kind: scores})
    found = read(npz("a.npz", **arrays | {kind: mended}), multilabel=several)
    assert_allclose(softmax(found.logits, axis=1)[:, 1], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["logits", "probs", "scores"])
def test_one_sigmoid_of_two_axes_is_a_column(kind):
    column = SCORE if kind == "logits" else expit(SCORE)
    arrays = {"logits": None, "labels": TRUTH}
    flat, found = (read(npz("a.npz", **arrays | {kind: each})) for each in (column, column[:, None]))
    assert_array_equal(found.logits, flat.logits)


TEXTS = np.where(AT_4, "", LABELS.astype(str))
BAD_CELLS = {
    "names alone": ({"y_true": NAMES}, {}, "line 2: label '.*' is none of 0, 1: fix it, or .* --positive=NAME"),
    "a wrong name": ({"y_true": NAMES}, {"positive": "eggs"}, "label '.*' is none of .*, eggs"),
    "no probability": ({"y_score": np.where(AT_4, 1.5, 0.5)}, {"probs": "y_score"}, "the first is line 6"),
    "an empty cell": ({"y_score": np.where(AT_4, np.nan, SCORE)}, {}, "are NaN, .*, the first in line 6"),
    "a word": ({"y_score": np.where(AT_4, "1_0", SCORE.astype(str))}, {}, "line 6: y_score is '1_0', no number"),
    "no label": ({"y_true": np.where(AT_4, "", TRUTH.astype(str))}, {}, "line 6: label '' is none"),
    "no class": ({"label": np.where(AT_4, "cow", NAMES), **named("logits_")}, {}, "line 6: label 'cow' is none of owl"),
    "a column twice": ({"z_1": SCORE, "z_1 ": SCORE}, {"logits": "z"}, "cannot be read"),
    "percents": (
        {"y_score": 100 * expit(SCORE)},
        {"probs": "y_score"},
        rf"the first is line 2 with {100 * expit(SCORE[0]):.6g}: of percents give probs / 100",
    ),
    "percents under a prefix": (
        {"label": LABELS, **named("z_", values=100 * PROBS)},
        {"scores": "z_"},
        "of percents give",
    ),
    "one row of 60": (
        {"label": LABELS, **named("z_", values=np.where(AT_4[:, None], 0.5, PROBS))},
        {"scores": "z_"},
        "1 rows of probs .*, the first is line 6 with 1.5: fix these, or leave them out",
    ),
    "a column of no class": (
        {"label": LABELS, **named("z_", values=np.float64(PROBS)), "z_value": RNG.random(N)},
        {"scores": "z_"},
        "without column 3, from 0, they do: name those of the classes",
    ),
    "a score above 1": ({"y_score": np.where(AT_4, 1.5, expit(SCORE))}, {}, "the first is line 6 with 1.5: fix these"),
    "another case": ({"y_true": np.where(AT_4, "fr", TRUTH.astype(str))}, {}, "line 6: label 'fr' is none of"),
    "no label beside numbers": ({"label": TEXTS, **named("logits_")}, {}, "line 6: label '' is no class number: fix"),
    "no prefix": ({"p0": SCORE, "p1": SCORE}, {"scores": "p"}, "by --logits-key or --probs-key=p0,p1"),
    "a gap": ({"z_0": SCORE, "z_2": SCORE}, {"logits": "z"}, "number them from 0 to 1"),
    "no name": ({"logits_scale": SCORE}, {"labels": "y_true", "logits": "logits"}, "has no array 'logits'"),
}


@pytest.mark.parametrize(("columns", "keys", "says"), BAD_CELLS.values(), ids=BAD_CELLS)
def test_a_bad_value_names_its_line(columns, keys, says):
    columns = columns if "label" in columns else {"y_true": TRUTH, "y_score": SCORE, **columns}
    with pytest.raises(InputError, match=says):
        read(csv("a.csv", **columns), **keys)


WAYS = {
    "by default": (named("logits_"), {}),
    "prob_ by default": (named("prob_", values=PROBS), {}),
    "a prefix": (named("z_"), {"scores": "z_"}),
    "a prefix of probabilities": (named("z_", values=PROBS), {"scores": "z"}),
    "a key": (named("z_"), {"logits": "z"}),
    "a list": (named(""), {"logits": "owl, cat,a_dog"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_columns_named_for_classes(way):
    columns, keys = WAYS[way]
    for labels in (NAMES, LABELS):
        found = read(csv("a.csv", id=np.arange(N), label=labels, **columns), **keys)
        assert_array_equal(found.labels, LABELS)
        assert_allclose(log_softmax(found.logits, 1), log_softmax(LOGITS, 1), atol=1e-5)
        assert (found.classes, found.unread) == (CLASSES, ("id",))
        assert found.kind == ("probs" if "prob" in way else "logits")
        assert not found.looks_like_probs


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 5), st.integers(2, 30), st.booleans())
def test_rounded_scores_are_read_as_probabilities_are(decimals, classes, is_column):
    probs, labels = overconfident(classes, 1.0, n=60)
    probs = np.round(probs, decimals)
    values = {"z": probs[:, 1] + 1e-7} if is_column else named("z_", range(classes), probs)
    path = csv("a.csv", y_true=labels % 2 if is_column else labels, **values)
    found, expected = read(path, scores="z"), read(path, probs="z")
    assert found.kind == "probs"
    assert_array_equal(found.logits, expected.logits)


@pytest.mark.parametrize(("mark", "decimal"), [(";", ","), (";", "."), ("\t", ".")])
def test_csv_files_of_other_marks_are_read_as_written(mark, decimal):
    columns = {"labels": LABELS, "group": GROUP, **named("logits_", range(3), np.float64(LOGITS))}
    found = read(csv("a.csv", **columns, options={"sep": mark, "decimal": decimal}))
    assert_array_equal(found.logits, LOGITS)
    assert_array_equal(found.group, GROUP)


@pytest.mark.parametrize("name", ["logits_{}", "logits_class{}"])
def test_thousands_of_columns_are_read_in_time_in_line_with_their_number(name):
    classes, began = 4000, time.process_time()
    values = RNG.normal(size=(N, classes))
    found = read(csv("a.csv", label=np.arange(N), **named("", map(name.format, range(classes)), values)))
    assert_array_equal(found.logits, np.float32(values))
    assert time.process_time() - began < 10  # 40 and more by a number of steps that grows with the square


def test_one_file_of_arrays_may_be_named_by_a_pattern():
    for name in ("a1.npz", "a2.npz"):
        npz(name)
    assert_array_equal(read("a1*.npz").logits, LOGITS)
    assert "a*.npz stands for 2 files: name one" in refused("a*.npz")


def test_what_unpacks_to_far_more_than_its_size_is_refused(monkeypatch):
    monkeypatch.setattr(sources, "UNPACKED_LEAST", 1 << 16)
    npz("a.npz", logits=np.zeros((10**6, 3)))
    np.savez_compressed("b.npz", logits=np.zeros((10**6, 3)), labels=LABELS)
    Path("c.csv.gz").write_bytes(gzip.compress(b"labels,logits_0,logits_1\n" + 10**6 * b"0,0,0\n"))
    assert "labels is" in refused("a.npz")
    for name in ("b.npz", "c.csv.gz"):
        assert "it unpacks to more than 200 times its own size" in refused(name)


def test_class_numbers_that_are_names_are_taken_for_names():
    path = csv("a.csv", label=2 - LABELS, **named("", "210"))
    assert_array_equal(read(path, logits="2,1,0").labels, LABELS)


BINARY = {
    "0 and 1": (TRUTH, {}),
    "-1 and 1": (2 * TRUTH - 1, {}),
    "booleans": (TRUTH == 1, {}),
    "floats": (TRUTH.astype(float), {}),
    "names": (np.array(["ham", "spam"])[TRUTH], {"positive": "spam"}),
    "0 for class 1": (1 - TRUTH, {"positive": "0"}),
}


@pytest.mark.parametrize("way", BINARY)
@pytest.mark.parametrize("name", ["y_prob", "logits", "y_score"])
def test_one_column_is_class_1_of_two(way, name):
    labels, keys = BINARY[way]
    arrays = {"y_true": labels, name: expit(SCORE) if name == "y_prob" else SCORE}
    np.savez("a.npz", **arrays)
    csv("a.csv", **arrays)
    jsonl("a.jsonl", pandas.DataFrame(arrays).to_dict("records"))
    for kind in ("npz", "csv", "jsonl"):
        found = read(f"a.{kind}", **keys)
        assert_array_equal(found.labels, TRUTH)
        expected = np.stack([0 * SCORE, SCORE], 1)
        assert_allclose(log_softmax(found.logits, 1), log_softmax(expected, 1), atol=1e-5)
        assert found.kind == ("probs" if name == "y_prob" else "logits")
        if found.kind == "logits":
            assert_array_equal(found.logits, expected.astype(np.float32))


def test_the_positive_class_is_class_one_whichever_column_is_first():
    labels = np.array(["ham", "spam"])[TRUTH]
    path = csv("a.csv", label=labels, prob_spam=expit(SCORE), prob_ham=expit(-SCORE))
    found = read(path, positive="spam")
    assert_allclose(found.logits[:, 1] - found.logits[:, 0], SCORE, atol=1e-5)
    assert_array_equal(found.labels, TRUTH)


def test_a_column_with_a_number_at_its_end_is_named_by_a_key():
    path = csv("a.csv", label=TRUTH == 1, prob_1=expit(SCORE), site_2=NAMES)
    found = read(path, probs="prob_1", group="site_2")
    assert_allclose(found.logits[:, 1] - found.logits[:, 0], SCORE, atol=1e-5)
    assert_array_equal(found.group, NAMES)


def test_columns_that_merely_begin_as_a_role_does_are_not_read_for_it():
    others = {"group_size": LABELS, "weight_kg": LABELS, "cluster_id": LABELS, "label_text": NAMES, "weights": LABELS}
    found = read(csv("a.csv", label=LABELS, **others, **named("logits_")))
    assert (found.group, found.weight, found.cluster, found.unread) == (None, None, None, tuple(others))


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_weights_clusters_and_groups_lose_the_rows_of_ignored_labels(kind):
    out = np.isin(np.arange(N), [0, 8, 9])
    labels = np.where(out, np.where(np.arange(N) == 9, 255, -100), LABELS)
    columns = {"labels": labels, "w": np.arange(N), "patient": LABELS // 2, "group": NAMES}
    scores = named("logits_") if kind == "csv" else {"logits": LOGITS}
    {"csv": csv, "npz": np.savez}[kind](f"a.{kind}", **columns, **scores)
    keys = {"weight": "w", "cluster": "patient"}
    found = read(f"a.{kind}", ignored=("-100", "255"), **keys)
    assert_array_equal(found.labels, LABELS[~out])
    assert_array_equal(found.logits, LOGITS[~out])
    assert_array_equal(found.weight, np.flatnonzero(~out))
    assert_array_equal(found.cluster, (LABELS // 2).astype(str)[~out])
    assert_array_equal(found.group, NAMES[~out])
    assert (found.left_out, found.unread) == (3, ())
    assert "255" in refused(f"a.{kind}", ignored=("-100",), **keys)
    assert "it has 0 examples" in refused(f"a.{kind}", ignored=("-100", "255", "0", "1", "2"), **keys)
    if kind == "csv":
        columns["labels"][20] = 5
        path = csv("b.csv", **columns, **scores)
        assert "the first is in line 22" in refused(path, ignored=("-100", "255"), **keys)


UNKNOWN = np.where(RNG.random((N, 3)) < 0.3, RNG.choice([np.nan, -1, 2], (N, 3)), 0)  # 2 is ignored
SEVERAL = np.where(UNKNOWN == 0, RNG.random((N, 3)) < expit(LOGITS), UNKNOWN)
IN_PART = {
    "a.csv": lambda path: csv(
        path, **named("labels_", range(3), SEVERAL), **named("logits_", range(3), np.float64(LOGITS))
    ),
    "a.jsonl": lambda path: pandas.DataFrame({"labels": SEVERAL.tolist(), "logits": LOGITS.tolist()}).to_json(
        path, orient="records", lines=True
    ),
}


@pytest.mark.parametrize("name", IN_PART)
def test_labels_that_are_missing_uncertain_or_ignored_are_none(name):
    IN_PART[name](name)
    found = read(name, ignored=("2",), multilabel=True)
    np.testing.assert_array_equal(found.labels, np.where(UNKNOWN == 0, SEVERAL, -1).ravel())
    assert (len(found.logits), found.left_out) == (3 * N, np.sum(UNKNOWN != 0))
    assert read(npz("a.npz", labels=np.uint8(SEVERAL == 1)), multilabel=True).left_out == 0


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.where(SEVERAL == 1, "yes", "no"), "labels of 0 and 1, NaN or -1 where there is none"),
        (SEVERAL, "NaN or -1 where there is none, or --ignore-label"),
        (np.where(SEVERAL == 1, 1, -1), "all labels are 1, one class"),
        ([0, -1, 1] + 0 * LABELS[:, None], "no row has label 1, from 0: leave its column out"),
        (np.where(AT_4[:, None], -1, np.eye(3, dtype=int)[LABELS]), "the first in row 4"),
    ],
)
def test_several_labels_that_cannot_be_are_one_line(labels, says):
    bad = np.where(AT_4[:, None] & ("row 4" in says), np.nan, LOGITS)
    assert says in refused(npz("a.npz", labels=labels, logits=bad), multilabel=True)


def test_a_test_file_may_have_no_labels():
    found = read(npz("a.npz", labels=None), where="test")
    assert found.labels is None
    assert_array_equal(found.logits, LOGITS)
    assert "val has no array 'labels'" in refused("a.npz")
    assert "test: it has 0 examples" in refused(npz("b.npz", labels=None, logits=LOGITS[:0]), where="test")
    assert read(csv("a.csv", y_prob=expit(SCORE)), where="test").logits.shape == (N, 2)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 3), min_size=N, max_size=N))
def test_choices_that_cannot_be_are_minus_infinity(sizes):
    labels = LABELS % sizes
    if len({*labels.tolist()}) == 1:
        sizes, labels = [3] * N, LABELS
    possible = np.arange(3) < np.array(sizes)[:, None]
    expected = np.where(possible, LOGITS, -np.inf)
    rows = [row[:size].tolist() for row, size in zip(LOGITS, sizes, strict=True)]
    jagged = [{"logits": row, "labels": int(label)} for row, label in zip(rows, labels, strict=True)]
    empty = named("logits_", values=np.where(possible, LOGITS, np.nan))
    paths = [
        npz("a.npz", logits=expected, labels=labels),
        csv("a.csv", label=labels, **empty),
        csv("b.csv", label=labels, **named("logits_", values=expected)),
        jsonl("a.jsonl", jagged),
    ]
    for path in paths:
        found = read(path)
        assert_array_equal(found.logits, expected[:, : found.logits.shape[1]])  # of lists the longest
        assert_array_equal(found.labels, labels)
    probs = np.where(possible, softmax(expected, axis=1), np.nan)
    found = read(csv("p.csv", label=labels, **named("z_", values=probs)), scores="z_")
    assert_array_equal(np.isneginf(found.logits), ~possible)
    assert_allclose(softmax(found.logits, axis=1), softmax(expected, axis=1), atol=1e-5)


def after_temperature(logits, labels):
    """T of the least NLL and that NLL, by SciPy in float64."""
    logits = np.asarray(logits, np.float64)
    mean = lambda log_t: -np.mean(log_softmax(logits / np.exp(log_t), 1)[np.arange(len(labels)), labels])  # noqa: E731
    best = minimize_scalar(mean, bounds=(-3, 5), method="bounded")
    return np.exp(best.x), best.fun


def overconfident(classes, temperature, n=3000, seed=0):
    generator = np.random.default_rng(seed)
    logits = 1.5 * generator.standard_normal((n, classes))
    labels = (logits + generator.gumbel(size=logits.shape)).argmax(1)
    return softmax(temperature * logits, axis=1), labels


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(2, 6), st.integers(2, 12), st.floats(0.5, 2), st.integers(0, 99))
def test_probabilities_of_any_number_of_decimals_are_scaled_as_exact_ones(decimals, classes, temperature, seed):
    """NLL within 2% of the exact one's; two decimals of ten classes that are too sure by 2 keep no more (3%)."""
    probs, labels = overconfident(classes, min(temperature, 1.4) if decimals == 2 else temperature, seed=seed)
    rounded = np.round(probs, decimals)
    unit = _unit(rounded)
    assert unit == (10**decimals if (rounded == 0).any() else 0)
    logits = floored_log(rounded)
    zeros = chosen(logits, labels, np.ones(len(labels)))
    logits = logits if zeros is None else zeros.filled(logits)
    exact = after_temperature(np.log(probs), labels)
    found = after_temperature(logits, labels)
    assert abs(found[1] / exact[1] - 1) < 0.02


def test_rounded_probabilities_and_votes_are_told_by_their_values():
    probs, labels = overconfident(10, 2.0)
    exact = after_temperature(np.log(probs), labels)
    for decimals in (3, 4):
        path = npz("a.npz", logits=None, probs=np.round(probs, decimals).astype(np.float32), labels=labels)
        found = read(path)
        assert found.unit == 10**decimals
        zeros = chosen(found.logits, labels, np.ones(len(labels)))
        temperature, nll_after = after_temperature(zeros.filled(found.logits), labels)
        assert abs(temperature / exact[0] - 1) < 0.02
        assert abs(nll_after / exact[1] - 1) < 0.01
    generator = np.random.default_rng(0)
    votes = np.stack([generator.multinomial(7, row) for row in probs]) / 7
    path = npz("v.npz", logits=None, probs=votes, labels=labels)
    assert_allclose(read(path).logits, np.log(np.maximum(votes, PROBABILITY_FLOOR)), atol=1e-5)
    given = read_outputs(path, Keys(), where="val", floor=0.01).logits
    assert_allclose(log_probabilities(votes, floor=0.01), given, atol=1e-6)
    for no_lattice in (np.eye(10)[labels], softmax(60 * probs, 1) * (probs > 0.01)):  # sure, and cut off
        assert _unit(no_lattice / no_lattice.sum(1, keepdims=True)) == 0


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_pickles_are_refused_and_not_executed():
    pickled = np.array([Bomb(), Bomb()], dtype=object)
    np.save("c.npy", pickled)
    Path("b.npz").write_bytes(pickle.dumps(Bomb()))
    for source in (npz("a.npz", labels=pickled), "logits=c.npy"):
        assert "it holds more than arrays, which could run code" in refused(source)
    assert "File is not a zip file" in refused("b.npz")


def test_a_torch_file_is_read_with_weights_only(monkeypatch):
    asked = []

    def load(path, **options):
        asked.append(options)
        raise RuntimeError("set weights_only=False\nto run it")

    Path("a.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    assert "which could run code): run the model, and torch.save" in refused("a.pt")
    assert asked == [{"map_location": "cpu", "weights_only": True}]
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" in refused("a.pt")


def test_a_real_torch_file():
    torch = pytest.importorskip("torch")
    for dtype, tolerance in ((torch.float32, 0), (torch.bfloat16, 1e-2)):
        tensors = {"logits": torch.tensor(LOGITS).to(dtype), "labels": torch.tensor(LABELS)}
        torch.save(tensors, "a.pt")
        assert_allclose(read("a.pt").logits, LOGITS, rtol=tolerance)


def test_files_that_are_none_of_their_format_or_no_files():
    whole = Path(npz("whole.npz")).read_bytes()
    damaged = {
        "b.npz": whole[:-100],
        "e.safetensors": (1 << 60).to_bytes(8, "little") + b"{}",
        "i.npy": np.lib.format.magic(1, 0) + b"\x40\0{'descr':'<f4','fortran_order':False,'shape':(10**12,3)}\n",
    }
    for name, content in damaged.items():
        Path(name).write_bytes(content)
        assert "cannot be read" in refused(f"logits={name}")
    os.mkfifo("pipe.npz")
    Path("folder.npz").mkdir()
    for name in ("pipe.npz", "folder.npz", "a.txt", "x" * 300 + ".npz"):
        assert "there is no file" in refused(name)


def samples(*, texts=True, document=lambda k: k, **more):
    """Lines as lm-evaluation-harness writes them, today as text, before as numbers; and its own Brier score."""
    rows, squares = [], []
    for k in range(N):
        count = 2 + k % 4
        values, target = RNG.normal(-20, 3, count), int(RNG.integers(count))
        squares.append(((softmax(values) - np.eye(count)[target]) ** 2).sum())
        pairs = [[str(v), "False"] if texts else [v, False] for v in values.tolist()]
        row = {"doc_id": document(k), "target": str(target) if texts else target, "resps": [[pair] for pair in pairs],
               "filtered_resps": pairs, "acc": float(values.argmax() == target)}  # fmt: skip
        rows.append(row | more)
    return rows, np.mean(squares)


def brier(found):
    onehot = np.eye(found.logits.shape[1])[found.labels]
    return ((softmax(found.logits.astype(float), axis=1) - onehot) ** 2).sum(1).mean()


@pytest.mark.parametrize("texts", [True, False])
def test_samples_of_lm_evaluation_harness_give_its_brier_score(texts):
    rows, expected = samples(texts=texts)
    found = read(jsonl("samples_arc_easy_2026-01-02T03-04-05.678.jsonl", rows))
    assert_allclose(brier(found), expected, rtol=1e-6)
    assert_array_equal(found.logits.argmax(1) == found.labels, [row["acc"] for row in rows])
    assert ({*found.group}, len({*found.cluster}), found.unread) == ({"arc_easy"}, N, ())
    bare = [{key: row[key] for key in ("doc_id", "target", "resps")} for row in rows]
    assert_array_equal(read(jsonl("samples.jsonl", bare)).logits, found.logits)


def test_a_pattern_reads_the_samples_of_several_tasks():
    for task in ("arc", "boolq"):
        jsonl(f"samples_{task}_2026-01-02T03-04-05.678.jsonl", samples(document=lambda k: k // 2)[0])
    found = read("samples_*.jsonl")
    assert found.group.tolist() == ["arc"] * N + ["boolq"] * N
    assert (len({*found.cluster}), len(set(found.checksum.split()))) == (N, 2)
    alone = read("samples_boolq_2026-01-02T03-04-05.678.jsonl")
    assert_array_equal(found.logits[N:, : alone.logits.shape[1]], alone.logits)
    assert "there is no file" in refused("none_*.jsonl")


def test_scores_without_the_question_are_left_out_and_what_is_no_choice_names_its_line():
    rows, expected = samples(acc_mutual_info=0.0)
    for row in rows:
        row["filtered_resps"] += [["-1.0", "False"]] * len(row["filtered_resps"])
    path = jsonl("samples_a_b.jsonl", rows)
    assert_allclose(brier(read(path)), expected, rtol=1e-6)
    for wrong in ({"target": "a text"}, {"filtered_resps": ["an answer"]}):
        said = refused(jsonl(path, [*rows[:4], rows[4] | wrong, *rows[5:]]))
        assert "line 5, cannot be read" in said
        assert "give samples of a multiple-choice task" in said
    assert "the first is in line 5" in refused(jsonl(path, [*rows[:4], rows[4] | {"target": "8"}, *rows[5:]]))
