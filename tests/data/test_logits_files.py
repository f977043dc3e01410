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
from ml_dtypes import bfloat16
from safetensors.numpy import save_file

from focalgeo.data.logits_files import Keys, read_calibrated, read_outputs
from focalgeo.types import InputError

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
    assert (found.saturated, found.looks_like_probs) == (0, False)
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
        says = f"val has no array 'x', only 'logits', 'labels': name the {role} by --{role}-key"
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
    assert (found.kind, found.saturated) == ("probs", 1)
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
    "vector": ({"logits": LOGITS[:, 0]}, "give both, np.stack"),
    "labels of one class": ({"labels": 0 * LABELS + 1}, "all labels are 1, one class"),
    "float labels": ({"labels": LABELS + 0.5}, "no class number 0, 1, 2"),
    "no label": ({"labels": LABELS - (LABELS == 0)}, "if -1 stands for no label"),
    "labels from 1": (
        {"labels": LABELS + 1},
        "labels run from 1 to 12: with 12 classes give labels from 0 to 11; .*- 1",
    ),
    "one-hot": ({"labels": np.eye(CLASSES, dtype=int)[LABELS]}, "labels.argmax"),
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
    assert f"at position {N}" in line(tmp_path / "a.csv")


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
    settings = []

    def load(path, **options):
        settings.append(options)
        raise RuntimeError("set weights_only=False\nto run it")

    (tmp_path / "a.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load))
    assert "it holds more than arrays, which could run code" in line(tmp_path / "a.pt")
    assert settings == [{"map_location": "cpu", "weights_only": True}]
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
