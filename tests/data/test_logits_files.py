"""Outputs of a classifier from every format; what is wrong with a file is one line; nothing in it is executed."""

import gzip
import hashlib
import os
import pickle
import sys
import types

import numpy as np
import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from safetensors.numpy import save_file
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

from focalgeo.calibration import log_probabilities
from focalgeo.data.logits_files import Keys, _unit, read_calibrated, read_outputs, rounded_floor
from focalgeo.losses import cross_entropy as nll
from focalgeo.types import InputError, floored_log

N, CLASSES = 40, 12
RNG = np.random.default_rng(0)
LOGITS = (4 * RNG.standard_normal((N, CLASSES))).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, N)
GROUP = RNG.choice(["NA", "north pole", "01", "é,"], N)
PROBS = np.exp(LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True)))
EXACT = (LOGITS * 1e-3).astype(np.float64)
TABLE = pandas.DataFrame({"labels": LABELS, "group": GROUP} | {f"logits_{k}": EXACT[:, k] for k in range(CLASSES)})
CSV = TABLE.to_csv(index=False)


def read(source, **keys):
    return read_outputs(str(source), Keys(**keys), where="val")


def line(source, **keys):
    """The one line that answers a bad file."""
    with pytest.raises(InputError) as caught:
        read(source, **keys)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def npz(path, **arrays):
    np.savez(path, **{"logits": EXACT, "labels": LABELS, **arrays})
    return path


def written(frame, kind, **options):
    def write(path):
        getattr(frame, f"to_{kind}")(path, **options)
        return path

    return write


LISTS = TABLE[["labels", "group"]].assign(logits=list(EXACT))
FORMATS = {
    "a.npz": lambda path: npz(path, group=GROUP),
    "A.CSV": written(TABLE, "csv", index=False),
    "a,labels=2.csv": written(TABLE[TABLE.columns[::-1]], "csv", index=False, encoding="utf-8-sig", quoting=1),
    "b.csv": lambda path: (
        path.write_text(CSV.replace(",", " , ").replace("é ,", "é,").replace("\n", "\r\n\r\n")) and path
    ),
    "a.csv.gz": written(TABLE, "csv", index=False),
    "a.tsv": written(TABLE, "csv", index=False, sep="\t"),
    "a.jsonl": written(LISTS, "json", orient="records", lines=True, double_precision=15),
    "a.jsonl.gz": written(TABLE, "json", orient="records", lines=True, double_precision=15),
    "a.parquet": written(TABLE, "parquet"),
    "b.parquet": written(LISTS, "parquet"),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_what_was_written(tmp_path, name):
    if "parquet" in name:
        pytest.importorskip("pyarrow")
    found = read(FORMATS[name](tmp_path / name))
    np.testing.assert_array_equal(found.logits, EXACT.astype(np.float32))
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.group, GROUP)
    assert (found.logits.dtype, found.labels.dtype, found.kind) == (np.float32, np.int32, "logits")
    assert (found.unit, found.unread, found.looks_like_probs) == (0, (), False)
    assert found.checksum == f"sha256:{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}"


def test_files_and_arrays_are_named_and_others_are_not_read(tmp_path):
    np.savez(tmp_path / "a.npz", z=LOGITS, y=LABELS, site=LABELS % 3, notes=np.array([{}], object), logits=0)
    found = read(tmp_path / "a.npz", logits="z", labels="y", group="site")
    assert found.group.tolist() == [str(label % 3) for label in LABELS]
    for name, array in (("z", LOGITS), ("y", LABELS), ("g", GROUP)):
        np.save(tmp_path / f"{name}.npy", array)
    pair = read(f"logits={tmp_path}/z.npy, labels={tmp_path}/y.npy,group={tmp_path}/g.npy")
    np.testing.assert_array_equal(pair.logits, found.logits)
    np.testing.assert_array_equal(pair.group, GROUP)
    assert pair.checksum.count("sha256:") == 3
    assert "has no array 'labels'" in line(f"logits={tmp_path}/z.npy")
    for role in ("logits", "labels", "group"):
        mend = "scores by --logits-key or --probs-key" if role in ("logits", "probs") else f"{role} by --{role}-key"
        says = f"val has no array 'x', only 'logits', 'labels': name the {mend}"
        assert line(npz(tmp_path / "b.npz"), **{role: "x"}) == says


@pytest.mark.parametrize("dtype", [np.float32, bfloat16])
def test_safetensors(tmp_path, dtype):
    save_file({"logits": LOGITS.astype(dtype), "labels": LABELS}, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(read(tmp_path / "a.safetensors").logits, LOGITS.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_probabilities_become_their_logarithms(tmp_path, dtype):
    probs = PROBS.astype(dtype)
    probs[0] = np.eye(CLASSES)[0]
    np.savez(tmp_path / "a.npz", probs=probs, labels=LABELS, val=PROBS)
    found = read(tmp_path / "a.npz")
    np.testing.assert_allclose(found.logits[1:], np.log(PROBS[1:]), atol=1e-6)
    np.testing.assert_allclose(found.logits[0], [0, *[np.log(1.1754944e-38)] * (CLASSES - 1)], rtol=1e-6)
    assert (found.kind, found.unit, found.unread) == ("probs", 0, ("val",))
    assert read(npz(tmp_path / "b.npz", logits=probs)).looks_like_probs
    assert not read(npz(tmp_path / "c.npz", logits=probs + 1)).looks_like_probs
    also = read_calibrated(str(tmp_path / "a.npz"), {"val": PROBS.shape}, where="--also=x")
    np.testing.assert_allclose(also["val"], np.log(PROBS), atol=1e-6)


def bits(probs, mask):
    return (np.ascontiguousarray(probs).view(np.uint32) & mask).view(np.float32)


def negative(amount):
    probs = np.float64(PROBS)
    probs[3] = [1.0, -amount, amount, *[0] * (CLASSES - 3)]
    return probs


@pytest.mark.parametrize(
    ("probs", "is_read"),
    [
        (bits(PROBS, 0xFFFF0000), True),  # of bfloat16, whose sums are off by 2e-3
        (PROBS * np.float32(1.015), False),
        (negative(1e-9), True),
        (negative(1e-3), False),
        (LOGITS, False),
        (PROBS * np.nan, False),
    ],
)
def test_probabilities_are_judged_by_the_digits_they_hold(tmp_path, probs, is_read):
    np.savez(tmp_path / "p.npz", probs=probs, labels=LABELS, val=probs)
    if is_read:
        assert read(tmp_path / "p.npz").kind == "probs"
        return
    assert "probs" in line(tmp_path / "p.npz")
    for shapes in ({"val": PROBS.shape}, {"val": (N, 2)}, {"test": PROBS.shape}):
        with pytest.raises(InputError, match="--also=x"):
            read_calibrated(str(tmp_path / "p.npz"), shapes, where="--also=x")


def test_labels_may_be_whole_floats(tmp_path):
    found = read(npz(tmp_path / "a.npz", labels=LABELS.astype(np.float16))).labels
    np.testing.assert_array_equal(found, LABELS)


def test_logits_far_from_0_keep_their_differences(tmp_path):
    for offset in (1e7, -1e12):
        found = read(npz(tmp_path / "a.npz", logits=LOGITS.astype(np.float64) + offset)).logits
        np.testing.assert_allclose(found, LOGITS - LOGITS.max(1, keepdims=True), atol=1e-3)


BAD = {
    "NaN": ({"logits": EXACT * np.where(LABELS[:, None] == LABELS[7], np.nan, 1)}, "are NaN, infinite or beyond 1e.30"),
    "beyond float32": ({"logits": EXACT * 1e42}, "beyond 1e.30"),
    "vector": ({"logits": LOGITS[:, 0]}, "row 0: label '.*' is none of 0, 1"),
    "labels of one class": ({"labels": 0 * LABELS + 1}, "all labels are 1, one class"),
    "cluster's length": ({"cluster": GROUP[:-1]}, "cluster is <U10 of shape .39,."),
    "labels from 1": (
        {"labels": 1 + np.arange(N) % 12},
        "labels run from 1 to 12: with 12 classes give labels from 0 to 11; .*- 1",
    ),
    "group's length": ({"group": GROUP[:-1]}, "group is <U10 of shape .39,."),
    "group of two lines": ({"group": np.array(["a\nb"] * N)}, "no name on one line"),
    "group missing": ({"group": np.where(LABELS[9] == LABELS, np.nan, 1)}, "group '' is no name"),
    "few": ({"logits": LOGITS[:29], "labels": LABELS[:29]}, "has 29 examples, too few"),
    "both": ({"probs": PROBS}, "has logits and probs: say which"),
}


@pytest.mark.parametrize(("arrays", "says"), BAD.values(), ids=BAD)
def test_bad_arrays_are_one_line(tmp_path, arrays, says):
    with pytest.raises(InputError, match=f"val.*{says}"):
        read(npz(tmp_path / "a.npz", **arrays))


ONE_HOT = np.eye(CLASSES, dtype=int)[LABELS]
ADVICE = {  # by what the values are: a hint that is right for one cause does harm for another
    "multi-hot": ({"labels": ONE_HOT | np.eye(CLASSES, dtype=int)[3]}, "multi-label"),
    "multi-hot of none": ({"labels": ONE_HOT * (LABELS > 3)[:, None]}, "multi-label"),
    "multi-hot of -1 and 1": ({"labels": 2 * ONE_HOT - 1}, "multi-label"),
    "soft": ({"labels": 0.9 * ONE_HOT + 0.1 / CLASSES}, "soft labels"),
    "fractions": ({"labels": LABELS + 0.5}, "fractions are no classes"),
    "NaN for no label": ({"labels": np.where(LABELS == 2, np.nan, LABELS)}, f"leave out the {sum(LABELS == 2)} rows"),
    "-1 for no label": ({"labels": LABELS - (LABELS == 0)}, "if -1 stands for no label, leave out"),
    "-100 for no label": ({"labels": np.where(LABELS == 2, -100, LABELS)}, "if -100 stands for no label"),
    "255 for no label": ({"labels": np.where(LABELS == 2, 255, LABELS).astype(np.uint8)}, "if 255 stands for no"),
    "-1 and 1": ({"labels": 2 * (LABELS % 2) - 1, "logits": LOGITS[:, :2]}, r"\(labels \+ 1\) // 2"),
    "a column": ({"labels": LABELS[:, None]}, r"labels\[..., 0\]"),
    "names": ({"labels": np.array(["cat", "dog"])[LABELS % 2]}, "of names give their numbers"),
    "classes first": ({"logits": LOGITS.T}, "classes first: give their transpose"),
    "tokens": ({"logits": LOGITS.reshape(4, 10, CLASSES), "labels": LABELS.reshape(4, 10)}, r"\[examples, classes\]"),
    "another length": ({"labels": LABELS[:-1]}, "one class number for each row"),
    "one logit": ({"logits": LOGITS[:, :1]}, r"np.stack\(\[0 \* z, z\], 1\)"),
    "sigmoid scores": ({"logits": None, "probs": 1 / (1 + np.exp(-LOGITS))}, "as sigmoid scores have"),
    "percents": ({"logits": None, "probs": np.round(100 * PROBS, 1)}, "of percents give probs / 100"),
    "votes as counts": ({"logits": None, "probs": np.eye(CLASSES, dtype=int)[LABELS] * 7}, "sum to 7 give probs / 7"),
    "logarithms": ({"logits": None, "probs": np.log(PROBS)}, "these are logarithms"),
    "logits": ({"logits": None, "probs": LOGITS}, "if these are logits"),
}


@pytest.mark.parametrize(("arrays", "says"), ADVICE.values(), ids=ADVICE)
def test_advice_is_by_what_the_values_are(tmp_path, arrays, says):
    arrays = {name: array for name, array in {"logits": EXACT, "labels": LABELS, **arrays}.items() if array is not None}
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(InputError, match=f"val.*{says}"):
        read(tmp_path / "a.npz")


def test_one_hot_labels_are_their_classes(tmp_path):
    np.testing.assert_array_equal(read(npz(tmp_path / "a.npz", labels=ONE_HOT.astype(float))).labels, LABELS)
    only = np.arange(40) == 7  # one label 1 in a column of scores is no row
    np.savez(tmp_path / "b.npz", probs=np.linspace(0.1, 0.9, 40), labels=only.astype(int))
    np.testing.assert_array_equal(read(tmp_path / "b.npz").labels, only)


def test_what_is_not_read_is_named_and_clusters_are_read_as_groups_are(tmp_path):
    found = read(npz(tmp_path / "a.npz", weights=LABELS, ids=LABELS, cluster=LABELS // 2, group=GROUP))
    assert found.unread == ("weights", "ids")
    np.testing.assert_array_equal(found.cluster, (LABELS // 2).astype(str))
    (tmp_path / "a.csv").write_text(CSV.replace("group", "patient"))
    assert read(tmp_path / "a.csv").unread == ("patient",)
    found = read(tmp_path / "a.csv", cluster="patient")
    np.testing.assert_array_equal(found.cluster, GROUP)
    assert (found.unread, found.group) == ((), None)


@pytest.mark.parametrize("order", ["<", ">"])
def test_other_bytes_of_the_same_numbers_are_read(tmp_path, order):
    found = read(npz(tmp_path / "a.npz", logits=LOGITS.astype(f"{order}f4"), labels=LABELS.astype(f"{order}i8")))
    np.testing.assert_array_equal(found.logits, LOGITS)
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_allclose(nll(LOGITS.astype(f"{order}f4"), LABELS.astype(f"{order}i8")), nll(LOGITS, LABELS))
    half = LOGITS.astype(bfloat16)  # of which NumPy's files say two bytes
    np.testing.assert_array_equal(read(npz(tmp_path / "b.npz", logits=half)).logits, half.astype(np.float32))


@pytest.mark.parametrize("name", ["a=b.npz", "x,labels=y.npz", "logits=z,labels=y.npz"])
def test_a_path_with_signs_of_the_grammar_is_a_path(tmp_path, name):
    np.testing.assert_array_equal(read(npz(tmp_path / name)).labels, LABELS)
    (tmp_path / "c,d=e").mkdir()
    np.save(tmp_path / "z.npy", LOGITS)
    np.save(tmp_path / "c,d=e" / "y=,.npy", LABELS)
    found = read(f"logits={tmp_path}/z.npy,labels={tmp_path}/c,d=e/y=,.npy")
    np.testing.assert_array_equal(found.labels, LABELS)


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
    logits = floored_log(rounded, rounded_floor(rounded, unit))
    np.testing.assert_allclose(np.exp(logits.astype(np.float64)).sum(1)[(rounded == 0).any(1)], 1, atol=1e-5)
    exact = after_temperature(np.log(probs), labels)
    found = after_temperature(logits, labels)
    assert abs(found[1] / exact[1] - 1) < 0.02


def test_rounded_probabilities_and_votes_are_told_by_their_values(tmp_path):
    probs, labels = overconfident(10, 2.0)
    for decimals in (3, 4):
        np.savez(tmp_path / "a.npz", probs=np.round(probs, decimals).astype(np.float32), labels=labels)
        found = read(tmp_path / "a.npz")
        assert found.unit == 10**decimals
        temperature, nll_after = after_temperature(found.logits, labels)
        exact = after_temperature(np.log(probs), labels)
        assert abs(temperature / exact[0] - 1) < 0.02
        assert abs(nll_after / exact[1] - 1) < 0.01
    generator = np.random.default_rng(0)
    votes = np.stack([generator.multinomial(7, row) for row in probs]) / 7
    np.savez(tmp_path / "v.npz", probs=votes, labels=labels)
    half = np.maximum(votes, 0.5 / 7)
    np.testing.assert_allclose(read(tmp_path / "v.npz").logits, np.log(half / half.sum(1, keepdims=True)), atol=1e-6)
    given = read_outputs(str(tmp_path / "v.npz"), Keys(), where="val", floor=0.01).logits
    np.testing.assert_allclose(log_probabilities(votes, floor=0.01), given, atol=1e-6)
    assert read(npz(tmp_path / "w.npz")).unit == 0
    for no_lattice in (np.eye(10)[labels], softmax(60 * probs, 1) * (probs > 0.01)):  # sure, and cut off
        assert _unit(no_lattice / no_lattice.sum(1, keepdims=True)) == 0


ROW = f"1,a{',1' * CLASSES}\n"
TEXTS = {
    "no header": CSV.partition("\n")[2],
    "a word": CSV + ROW.replace(",1", ",x", 1),
    "an underscore": CSV + ROW.replace(",1", ",1_0", 1),
    "longer rows": CSV.replace("\n", ",\n").replace("logits_11,", "logits_11", 1),
    "a column twice": CSV.replace("logits_3", "logits_2"),
    "a gap": CSV.replace("logits_11", "logits_12"),
    "an open quote": f'{CSV}"{ROW}',
    "a label with a fraction": f"{CSV}1.5{ROW[1:]}",
    "other bytes": "\xff\xfe\0labels",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_bad_table_is_one_line(tmp_path, text):
    (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
    assert "val" in line(tmp_path / "a.csv")


def test_a_bad_cell_is_named(tmp_path):
    (tmp_path / "a.csv").write_text(CSV + ROW.replace(",1", ",x", 1))
    assert line(tmp_path / "a.csv") == f"val, line {N + 2}: logits_0 is 'x', no number"


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_pickles_are_refused_and_not_executed(tmp_path):
    pickled = np.array([Bomb(), Bomb()], dtype=object)
    np.save(tmp_path / "c.npy", pickled)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb()))
    for source in (npz(tmp_path / "a.npz", labels=pickled), tmp_path / "b.npz", f"logits={tmp_path}/c.npy"):
        assert "it holds more than arrays, which could run code" in line(source)


def test_a_torch_file_is_read_with_weights_only(tmp_path, monkeypatch):
    asked = []

    def load(path, **options):
        asked.append(options)
        raise RuntimeError("set weights_only=False\nto run it")

    (tmp_path / "a.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    assert "it holds more than arrays, which could run code): run the model, and torch.save" in line(tmp_path / "a.pt")
    assert asked == [{"map_location": "cpu", "weights_only": True}]
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "torch" in line(tmp_path / "a.pt")


def test_a_real_torch_file(tmp_path):
    torch = pytest.importorskip("torch")
    for dtype, tolerance in ((torch.float32, 0), (torch.bfloat16, 1e-2)):
        tensors = {"logits": torch.tensor(LOGITS).to(dtype), "labels": torch.tensor(LABELS)}
        torch.save(tensors, tmp_path / "a.pt")
        np.testing.assert_allclose(read(tmp_path / "a.pt").logits, LOGITS, rtol=tolerance)


def test_files_that_are_none_of_their_format_or_no_files(tmp_path):
    whole = npz(tmp_path / "whole.npz").read_bytes()
    damaged = {
        "a.npz": b"",
        "b.npz": whole[:-100],
        "c.npz": whole[:200] + bytes(60) + whole[260:],
        "d.safetensors": whole,
        "e.safetensors": (1 << 60).to_bytes(8, "little") + b"{}",
        "f.parquet": whole,
        "g.jsonl": b"[" * 100_000,
        "h.csv.gz": gzip.compress(CSV.encode())[:-9],
        "i.npy": np.lib.format.magic(1, 0) + b"\x40\0{'descr':'<f4','fortran_order':False,'shape':(10**12,3)}\n",
    }
    for name, content in damaged.items():
        (tmp_path / name).write_bytes(content)
        assert "cannot be read" in line(tmp_path / name if name != "i.npy" else f"logits={tmp_path}/i.npy")
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "folder.npz", "nowhere.npz", "a.txt", "x" * 300 + ".npz"):
        assert "there is no file" in line(tmp_path / name)
