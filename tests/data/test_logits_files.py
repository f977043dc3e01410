"""Outputs of a classifier from every format; what is wrong with a file is one line; nothing in it is executed."""

import hashlib
import json
import os
import pickle
import re
import struct
import sys
import types
import zipfile

import numpy as np
import pytest
import safetensors.numpy

from focalgeo.data import archives
from focalgeo.data.logits_files import Keys, read_outputs
from focalgeo.types import InputError

N, CLASSES = 40, 3
RNG = np.random.default_rng(0)
LOGITS = (4 * RNG.standard_normal((N, CLASSES))).astype(np.float32)
LABELS = RNG.integers(0, CLASSES, N)
GROUP = RNG.choice(["north", "south"], N)
PROBS = np.exp(LOGITS - np.log(np.exp(LOGITS).sum(1, keepdims=True)))


def write_npz(path, **arrays):
    np.savez(path, **{"logits": LOGITS, "labels": LABELS, **arrays})
    return str(path)


def write_csv(path, *, header="labels,group,logits_0,logits_1,logits_2", cut=0, label=str):
    lines = [
        f"{label(y)},{g},{','.join(map(repr, map(float, z)))}" for y, g, z in zip(LABELS, GROUP, LOGITS, strict=True)
    ]
    text = "\n".join([header, *lines]) + "\n"
    path.write_text(text[: len(text) - cut])
    return str(path)


def write_safetensors(path, arrays, *, cut=0):
    header, body = {"__metadata__": {"by": "test"}}, b""
    for name, (kind, array) in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + body
    path.write_bytes(data[: len(data) - cut])
    return str(path)


def read(source, *, where="val", **keys):
    return read_outputs(str(source), Keys(**keys), where=where)


def line(source, **keys):
    """The one line that answers a bad file."""
    with pytest.raises(InputError) as caught:
        read(source, **keys)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_npz_with_a_group_and_its_checksum(tmp_path):
    path = write_npz(tmp_path / "val.npz", group=GROUP)
    found = read(path)
    np.testing.assert_array_equal(found.logits, LOGITS)
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.group, GROUP)
    assert (found.logits.dtype, found.labels.dtype, found.given) == (np.float32, np.int32, "logits")
    assert found.checksum == f"sha256:{hashlib.sha256((tmp_path / 'val.npz').read_bytes()).hexdigest()}"
    assert not found.looks_like_probs
    assert found.saturated == 0


def test_arrays_of_other_names_are_said_by_key(tmp_path):
    np.savez(tmp_path / "a.npz", z=LOGITS, y=LABELS, site=GROUP)
    found = read(tmp_path / "a.npz", logits="z", labels="y", group="site")
    np.testing.assert_array_equal(found.logits, LOGITS)
    np.testing.assert_array_equal(found.group, GROUP)


def test_probabilities_become_their_logarithms(tmp_path):
    np.savez(tmp_path / "a.npz", probs=PROBS, labels=LABELS)
    found = read(tmp_path / "a.npz")
    np.testing.assert_allclose(found.logits, np.log(PROBS), atol=1e-6)
    assert found.given == "probs"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_probability_of_0_is_the_same_small_number_in_every_type(tmp_path, dtype):
    probs = PROBS.astype(dtype)
    probs[0] = [1, 0, 0]
    np.savez(tmp_path / "a.npz", probs=probs, labels=LABELS)
    found = read(tmp_path / "a.npz")
    assert found.saturated == 1
    np.testing.assert_allclose(found.logits[0], [0, np.log(1.1754944e-38), np.log(1.1754944e-38)], rtol=1e-6)


def test_two_npy_files_say_what_they_are(tmp_path):
    np.save(tmp_path / "z.npy", LOGITS)
    np.save(tmp_path / "y.npy", LABELS)
    np.save(tmp_path / "g.npy", GROUP)
    found = read(f"logits={tmp_path}/z.npy,labels={tmp_path}/y.npy,group={tmp_path}/g.npy")
    np.testing.assert_array_equal(found.logits, LOGITS)
    np.testing.assert_array_equal(found.group, GROUP)
    assert found.checksum.count("sha256:") == 3
    assert "an .npy file has no names; give --val=logits=z.npy,labels=y.npy" in line(tmp_path / "z.npy")
    assert "is no .npy file" in line(f"logits={tmp_path}/z.npz,labels={tmp_path}/y.npy")
    assert "z.npy has no labels: add ,labels=y.npy" in line(f"logits={tmp_path}/z.npy")
    assert "has neither logits nor probs: begin with" in line(f"labels={tmp_path}/y.npy")
    assert "says the same array twice" in line(f"logits={tmp_path}/z.npy,logits=z.npy,labels=y.npy")
    for typo in ("logit=z.npy,labels=y.npy", "logit=z.npy"):
        assert f"--val={typo}: logit= is not known; did you mean logits=?" in line(typo)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("labels;logits_0;logits_1\n0;1.0;2.0\n", "columns are separated by semicolons: write it with commas"),
        ("labels\tlogits_0\n0\t1.0\n", "columns are separated by tabs"),
        ("0,1.0,2.0\n1,0.5,0.1\n", "a.csv has no header: begin it with a line such as labels,logits_0,logits_1"),
        (
            "labels,logits_0,logits_1\n0,1.0,2.0\n\n1,x,3.0\n",
            "a.csv, line 4, column 'logits_0' is 'x', no number: mend the cell or remove the line",
        ),
        ("labels,logits_0,logits_1\n0,1.0,2.0\n1,3.0\n", "a.csv, line 3 has 2 cells, the header 3"),
        ("labels,logits_0,logits_1\n0,1,5,2,5\n", "line 2 has 5 cells, the header 3: write numbers with points"),
        ("labels,logits_0,logits_1\n0,1_0,2.0\n", "line 2, column 'logits_0' is '1_0', no number"),
        ('labels,logits_0,logits_1\n"0,1,2\n1,2,3"\n', "line 2 has a quote that is not closed"),
        ("labels,logits_0,logits_1\0\n", "it holds zero bytes"),
    ],
)
def test_a_csv_error_names_its_place(tmp_path, text, says):
    (tmp_path / "a.csv").write_text(text)
    assert says in line(tmp_path / "a.csv")


def test_csv_columns_are_in_the_order_of_numbers(tmp_path):
    logits = RNG.standard_normal((N, 12))
    names = [f"logits_{k}" for k in range(12)]

    def write(order):
        rows = [f"{y},{','.join(repr(float(row[k])) for k in order)}" for y, row in zip(LABELS, logits, strict=True)]
        (tmp_path / "a.csv").write_text("\n".join([",".join(["labels", *(names[k] for k in order)]), *rows]))
        return tmp_path / "a.csv"

    np.testing.assert_array_equal(read(write(range(12))).logits, logits.astype(np.float32))
    assert "must be logits_0, logits_1, ... once each and in order" in line(write(sorted(range(12), key=str)))


def test_quotes_blank_lines_and_other_line_ends_of_a_csv_change_nothing(tmp_path):
    write_csv(tmp_path / "a.csv")
    lines = (tmp_path / "a.csv").read_text().splitlines()
    quoted = [",".join(f'"{cell}"' for cell in each.split(",")) for each in lines]
    for name, text in (("b", "\r\n".join(["\ufeff" + lines[0], "", *lines[1:]])), ("c", "\r".join(quoted))):
        (tmp_path / f"{name}.csv").write_text(text, encoding="utf-8", newline="")
        found = read(tmp_path / f"{name}.csv")
        np.testing.assert_array_equal(found.logits, LOGITS)
        np.testing.assert_array_equal(found.group, GROUP)


def test_a_cell_in_quotes_may_hold_line_breaks_and_spaces_may_follow_commas(tmp_path):
    write_csv(tmp_path / "a.csv")
    header, *rows = (tmp_path / "a.csv").read_text().splitlines()
    spaced = ['"' + each.replace(",", '", "') + '"' for each in [header, *rows]]
    last = [f"{header},text", *(f'{row},"line, one\r\nline ""two""\n\n{row[:9]}"' for row in rows)]
    first = [f"text,{header}", *(f'"line one\nline two",{row}' for row in rows)]
    for name, lines in (("b", spaced), ("c", last), ("d", first)):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines), newline="")
        found = read(tmp_path / f"{name}.csv")
        np.testing.assert_array_equal(found.logits, LOGITS)
        np.testing.assert_array_equal(found.labels, LABELS)
        np.testing.assert_array_equal(found.group, GROUP)
    (tmp_path / "e.csv").write_text("\n".join([*last[:-1], rows[-1]]))
    assert "e.csv, line 158 has 5 cells, the header 6" in line(tmp_path / "e.csv")


def test_labels_may_be_whole_floats(tmp_path):
    given = (
        write_npz(tmp_path / "a.npz", labels=LABELS.astype(np.float64)),
        write_npz(tmp_path / "b.npz", labels=LABELS.astype(np.float16)),
        write_csv(tmp_path / "c.csv", label=lambda label: f"{label}.0"),
        write_csv(tmp_path / "d.csv", label=lambda label: f"+{label}."),
    )
    for path in given:
        np.testing.assert_array_equal(read(path).labels, LABELS)
        assert read(path).labels.dtype == np.int32


def test_logits_far_from_0_keep_their_differences(tmp_path):
    for number, offset in enumerate((1e7, -1e12)):
        found = read(write_npz(tmp_path / f"{number}.npz", logits=LOGITS.astype(np.float64) + offset)).logits
        np.testing.assert_allclose(found, LOGITS - LOGITS.max(1, keepdims=True), atol=1e-3)
    whole = np.round(LOGITS).astype(np.int64) - 10
    found = read(write_npz(tmp_path / "u.npz", logits=whole.astype(np.uint64))).logits  # from 2^64 downwards
    np.testing.assert_array_equal(found, whole - whole.max(1, keepdims=True))
    exact = read(write_npz(tmp_path / "f.npz", logits=LOGITS.astype(np.float64))).logits
    np.testing.assert_array_equal(exact, LOGITS)


def test_a_file_s_name_may_look_like_a_list_of_files(tmp_path):
    assert len(read(write_csv(tmp_path / "a,labels=2.csv")).labels) == N
    for name, array in (("z", LOGITS), ("y", LABELS)):
        np.save(tmp_path / f"{name}.npy", array)
    np.testing.assert_array_equal(read(f"logits={tmp_path}/z.npy, labels={tmp_path}/y.npy").labels, LABELS)


def test_what_is_no_regular_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    (tmp_path / "b.npz").symlink_to("gone.npz")
    for name, says in (("a.npz", "is a pipe: give a file"), ("b.npz", "is a link to gone.npz, where nothing is")):
        assert says in line(tmp_path / name)
    assert "is a device: give a file" in line("/dev/null")


def test_an_array_has_the_bytes_that_its_header_declares(tmp_path):
    np.save(tmp_path / "y.npy", LABELS)
    for shape, content in (((10**12, 3), b""), ((-N, 3), b""), ((N, 3), bytes(721)), ((N, 3), bytes(719))):
        with (tmp_path / "z.npy").open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
            file.write(content)
        assert "the array declares shape" in line(f"logits={tmp_path}/z.npy,labels={tmp_path}/y.npy")


def test_what_needs_more_than_the_free_memory_is_refused_before_it_is_read(tmp_path, monkeypatch):
    write_npz(tmp_path / "a.npz")
    write_csv(tmp_path / "a.csv")
    monkeypatch.setattr(archives, "free_memory", lambda: 1400)
    assert "a.npz: logits.npy needs 1,440 bytes of memory, and 1,400 bytes are free" in line(tmp_path / "a.npz")
    assert "a.csv: the file needs" in line(tmp_path / "a.csv")


def test_a_name_twice_in_an_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in ("logits.npy", "logit\n.npy"):
            archive.writestr(name, b"")
    data = (tmp_path / "a.npz").read_bytes().replace(b"logit\n", b"logits")
    (tmp_path / "a.npz").write_bytes(data)
    assert "a.npz holds logits twice" in line(tmp_path / "a.npz")


def test_probabilities_are_judged_by_the_digits_they_hold(tmp_path):
    short = (np.ascontiguousarray(PROBS).view(np.uint32) & 0xFFFF0000).view(np.float32)  # bfloat16 cuts 16 bits off
    assert np.abs(short.sum(1) - 1).max() > 2e-3
    np.savez(tmp_path / "p.npz", probs=short, labels=LABELS)
    assert read(tmp_path / "p.npz").given == "probs"
    longer = ((PROBS * np.float32(1.005)).view(np.uint32) & 0xFFFFFF00).view(np.float32)  # no bfloat16 has these
    for name, probs in (("q", short.astype(np.float64)), ("r", longer)):
        np.savez(tmp_path / f"{name}.npz", probs=probs, labels=LABELS)
        assert "do not sum to 1" in line(tmp_path / f"{name}.npz")


def test_a_probability_below_zero_by_rounding_is_zero(tmp_path):
    probs = np.float64(PROBS)
    probs[3] = [1.0, -1e-9, 1e-9]
    np.savez(tmp_path / "p.npz", probs=probs, labels=LABELS)
    assert read(tmp_path / "p.npz").logits[3, 1] < -87
    probs[3] = [1.0, -1e-3, 1e-3]
    np.savez(tmp_path / "p.npz", probs=probs, labels=LABELS)
    assert "probs[3, 1] is -0.001, no probability" in line(tmp_path / "p.npz")


def test_one_hot_labels_and_missing_groups_are_one_line(tmp_path):
    one_hot = write_npz(tmp_path / "a.npz", labels=np.eye(CLASSES)[LABELS])
    assert "labels have shape (40, 3): give class numbers, labels.argmax(1) of one-hot" in line(one_hot)
    empty = GROUP.copy()
    empty[[5, 7]] = " "
    assert "group of 2 examples is missing, the first in row 5" in line(write_npz(tmp_path / "b.npz", group=empty))
    numbers = np.where(np.arange(N) == 9, np.nan, 1.0)
    assert "group of 1 examples is missing, the first in row 9" in line(write_npz(tmp_path / "c.npz", group=numbers))


def test_csv(tmp_path):
    found = read(write_csv(tmp_path / "a.csv"))
    np.testing.assert_array_equal(found.logits, LOGITS)
    np.testing.assert_array_equal(found.labels, LABELS)
    np.testing.assert_array_equal(found.group, GROUP)
    other = read(write_csv(tmp_path / "b.csv", header="y, site ,z_0,z_1,z_2"), logits="z", labels="y", group="site")
    np.testing.assert_array_equal(other.logits, LOGITS)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cut": 30}, "a.csv, line 41 has 4 cells, the header 5: complete or remove it"),
        ({"label": lambda y: f"{y}.5"}, ".5': give class numbers 0, 1, 2"),
        ({"header": "labels,group,logits_0,logits_2,logits_1"}, "columns of 'logits' must be logits_0, logits_1"),
        (
            {"header": "labels,group,a,b,c"},
            "val has neither logits nor probs, only 'labels', 'group', 'a', 'b', 'c': call its columns labels and",
        ),
    ],
)
def test_a_bad_csv_is_one_line(tmp_path, settings, says):
    assert says in line(write_csv(tmp_path / "a.csv", **settings))


def test_columns_of_a_csv_are_in_the_order_of_their_numbers(tmp_path):
    logits = RNG.normal(size=(N, 12)).astype(np.float32)
    lines = [",".join(map(str, [label, *map(float, row)])) for label, row in zip(LABELS, logits, strict=True)]
    names = [f"logits_{k}" for k in range(12)]
    (tmp_path / "a.csv").write_text("\n".join([",".join(["labels", *names]), *lines]))
    np.testing.assert_array_equal(read(tmp_path / "a.csv").logits, logits)
    (tmp_path / "b.csv").write_text("\n".join([",".join(["labels", *sorted(names)]), *lines]))
    assert "columns of 'logits' must be logits_0, logits_1, ... once each and in order" in line(tmp_path / "b.csv")


def test_a_csv_without_rows_or_with_other_bytes_is_one_line(tmp_path):
    (tmp_path / "a.csv").write_text("labels,logits_0,logits_1\n")
    line(tmp_path / "a.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00labels")
    assert "is corrupt" in line(tmp_path / "b.csv")


def test_safetensors_of_float32_and_bfloat16(tmp_path):
    arrays = {"logits": ("F32", LOGITS), "labels": ("I64", LABELS.astype("<i8"))}
    found = read(write_safetensors(tmp_path / "a.safetensors", arrays))
    np.testing.assert_array_equal(found.logits, LOGITS)
    np.testing.assert_array_equal(found.labels, LABELS)
    rounded = (LOGITS.view("<u4") >> 16).astype("<u2")
    found = read(write_safetensors(tmp_path / "b.safetensors", {**arrays, "logits": ("BF16", rounded)}))
    np.testing.assert_array_equal(found.logits, (LOGITS.view("<u4") & 0xFFFF0000).view("<f4"))


def test_safetensors_written_by_their_own_library(tmp_path):
    safetensors.numpy.save_file({"logits": LOGITS, "labels": LABELS}, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(read(tmp_path / "a.safetensors").logits, LOGITS)


@pytest.mark.parametrize("cut", [4, 2 * N * CLASSES, 10**5])
def test_safetensors_cut_short_are_one_line(tmp_path, cut):
    arrays = {"logits": ("F32", LOGITS), "labels": ("I64", LABELS.astype("<i8"))}
    path = tmp_path / "a.safetensors"
    write_safetensors(path, arrays)
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - cut, 5)])
    assert "is corrupt, cut short or no .safetensors file" in line(path)


def test_a_torch_file_without_torch_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "a.pt").write_bytes(b"x")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "needs torch to be read: pip install torch" in line(tmp_path / "a.pt")


class Tensor:
    """As much of a tensor as is read."""

    def __init__(self, array):
        self.array, self.dtype = array, f"torch.{array.dtype}"

    def detach(self):
        return self

    def numpy(self):
        return self.array


def test_a_torch_file_is_read_with_weights_only(tmp_path, monkeypatch):
    (tmp_path / "a.pt").write_bytes(b"x")
    asked = []

    def load(path, **settings):
        asked.append(settings)
        return {"logits": Tensor(LOGITS), "labels": Tensor(LABELS)}

    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load, Tensor=Tensor))
    np.testing.assert_array_equal(read(tmp_path / "a.pt").logits, LOGITS)
    assert asked == [{"map_location": "cpu", "weights_only": True}]
    refuse = types.SimpleNamespace(load=lambda path, **_: pickle.loads(b""), Tensor=Tensor)
    monkeypatch.setitem(sys.modules, "torch", refuse)
    assert "is corrupt, cut short or no .pt file (Ran out of input)" in line(tmp_path / "a.pt")
    for error in (
        pickle.UnpicklingError("Weights only load failed"),
        RuntimeError("set weights_only=False\nto run it"),
    ):

        def advise(path, error=error, **_):
            raise error

        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=advise, Tensor=Tensor))
        message = line(tmp_path / "a.pt")
        assert "it holds more than tensors, which could run code" in message
        assert "eights" not in message
    bare = types.SimpleNamespace(load=lambda path, **_: Tensor(LOGITS), Tensor=Tensor)
    monkeypatch.setitem(sys.modules, "torch", bare)
    assert "is no dict of tensors" in line(tmp_path / "a.pt")


def test_tensors_of_a_torch_file_that_are_no_arrays_or_larger_than_memory_are_refused(tmp_path, monkeypatch):
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("data", b"x")

    class Sparse(Tensor):
        def numpy(self):
            raise TypeError("sparse")

    for tensor, says in (
        (Sparse(LOGITS), "logits: sparse"),
        (Tensor(np.broadcast_to(np.float32(1), (10**12, 9))), "logits needs 33,527.6 GiB of memory"),
    ):
        load = lambda path, tensor=tensor, **_: {"logits": tensor, "labels": Tensor(LABELS)}  # noqa: E731
        monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(load=load, Tensor=Tensor))
        assert says in line(tmp_path / "a.pt")


def test_a_real_torch_file(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"logits": torch.tensor(LOGITS), "labels": torch.tensor(LABELS)}, tmp_path / "a.pt")
    np.testing.assert_array_equal(read(tmp_path / "a.pt").logits, LOGITS)


def with_value(array, value, index=(7, 1), dtype=None):
    changed = array.astype(dtype or array.dtype)
    changed[index] = value
    return changed


BAD = {
    "NaN": ({"logits": with_value(LOGITS, np.nan)}, "logits of 1 examples are NaN or infinite, the first in row 7"),
    "infinite": ({"logits": with_value(LOGITS, np.inf)}, "logits of 1 examples are NaN or infinite"),
    "beyond float32": ({"logits": with_value(LOGITS, 1e39, dtype=np.float64)}, "logits run up to 1e+39, beyond 1e+30"),
    "beyond sums": ({"logits": with_value(LOGITS, -1e37)}, "logits run up to 1e+37, beyond 1e+30"),
    "labels of one class": ({"labels": 0 * LABELS + 1}, "all labels are 1, one class"),
    "text": ({"logits": LOGITS.astype(str)}, "logits are of type <U"),
    "vector": (
        {"logits": LOGITS[:, 0]},
        "logits have shape (40,): give [examples, classes]; of two classes give both, np.stack([0 * z, z], 1)",
    ),
    "one class": ({"logits": LOGITS[:, :1], "labels": 0 * LABELS}, "logits have 1 class: give two or more"),
    "float labels": ({"labels": LABELS + 0.5}, "no class number: give 0, 1, 2 ..."),
    "label too large": ({"labels": with_value(LABELS, 3, 5)}, "labels[5] is 3: with 3 classes give labels from 0 to 2"),
    "label below 0": ({"labels": with_value(LABELS, -1, 5)}, "if -1 stands for no label, leave these examples out"),
    "labels from 1": ({"labels": LABELS + 1}, "these run from 1 to 3: give labels - 1"),
    "column of labels": ({"labels": LABELS[:, None]}, "labels have shape (40, 1): give class numbers, labels[:, 0]"),
    "group of two lines": ({"group": np.array(["a\nb"] * N)}, "is no text of one line"),
    "group of records": ({"group": np.zeros(N, "f4,f4")}, "group is of type"),
    "group of other bytes": ({"group": np.array([b"\xff"] * N)}, "group hold bytes that are no text"),
    "length": ({"labels": LABELS[:-1]}, "labels have shape (39,), logits (40, 3): give one for each row of logits"),
    "one-hot": ({"labels": np.eye(3, dtype=int)[LABELS]}, "labels have shape (40, 3)"),
    "group": ({"group": GROUP[:-1]}, "group has shape (39,)"),
    "10 examples": ({"logits": LOGITS[:10], "labels": LABELS[:10]}, "val has 10 examples, too few to fit"),
    "no examples": ({"logits": LOGITS[:0], "labels": LABELS[:0]}, "val has 0 examples"),
    "both": ({"probs": PROBS}, "val has logits and probs: say which by --logits-key=logits or --probs-key=probs"),
}


@pytest.mark.parametrize(("arrays", "says"), BAD.values(), ids=BAD)
def test_bad_arrays_are_one_line(tmp_path, arrays, says):
    assert says in line(write_npz(tmp_path / "a.npz", **arrays))


@pytest.mark.parametrize(
    ("probs", "says"),
    [
        (LOGITS, "no probability: if these are logits, say --logits-key"),
        (2 * PROBS / 3, "40 of 40 rows of probs do not sum to 1, the worst is row 30 with 0.666667: give"),
        (with_value(PROBS, np.nan), "probs of 1 examples are NaN"),
    ],
)
def test_what_are_no_probabilities_is_one_line(tmp_path, probs, says):
    np.savez(tmp_path / "a.npz", probs=probs, labels=LABELS)
    assert says in line(tmp_path / "a.npz")


def test_probabilities_given_as_logits_are_noticed(tmp_path):
    assert read(write_npz(tmp_path / "a.npz", logits=PROBS)).looks_like_probs
    assert not read(write_npz(tmp_path / "b.npz", logits=PROBS + 1)).looks_like_probs


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"logits": "x"}, "val has no array 'x', only 'logits', 'labels': name it by --logits-key or --probs-key"),
        ({"labels": "y"}, "val has no array 'y', only 'logits', 'labels': name the labels by --labels-key"),
        ({"group": "site"}, "val has no array 'site', only 'logits', 'labels': name the group by --group-key"),
    ],
)
def test_a_name_that_is_not_there_is_one_line(tmp_path, keys, says):
    assert line(write_npz(tmp_path / "a.npz"), **keys) == says


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('executed')",))


def test_pickles_are_refused_and_not_executed(tmp_path):
    pickled = np.array([Bomb(), Bomb()], dtype=object)
    np.savez(tmp_path / "a.npz", logits=LOGITS, labels=pickled, allow_pickle=True)
    (tmp_path / "b.npz").write_bytes(pickle.dumps(Bomb()))
    np.save(tmp_path / "c.npy", pickled, allow_pickle=True)
    np.save(tmp_path / "z.npy", LOGITS)
    for source in (tmp_path / "a.npz", tmp_path / "b.npz", f"logits={tmp_path}/z.npy,labels={tmp_path}/c.npy"):
        assert "holds pickled objects, which could run code" in line(source)


def test_files_that_are_empty_cut_short_missing_or_of_another_format_are_one_line(tmp_path):
    write_npz(tmp_path / "whole.npz")
    data = (tmp_path / "whole.npz").read_bytes()
    for name, content, says in (
        ("empty.npz", b"", "is empty: write it again"),
        ("short.npz", data[:-100], "is corrupt, cut short or no .npz file"),
        ("middle.npz", data[:200] + bytes(60) + data[260:], "is corrupt"),
        ("logits.txt", data, "is of no known format: give one of .npz"),
        ("garbage.npy", b"abc", "an .npy file has no names"),
    ):
        (tmp_path / name).write_bytes(content)
        assert says in line(tmp_path / name)
    assert "No such file or directory; check the path" in line(tmp_path / "nowhere.npz")
    (tmp_path / "folder.npz").mkdir()
    assert "is a folder: give a file" in line(tmp_path / "folder.npz")
    assert "is corrupt, cut short or no .npy file" in line(
        f"logits={tmp_path}/garbage.npy,labels={tmp_path}/garbage.npy"
    )


def test_an_array_cut_short_inside_a_whole_archive_is_one_line(tmp_path):
    np.savez(tmp_path / "whole.npz", logits=LOGITS, labels=LABELS)
    with zipfile.ZipFile(tmp_path / "whole.npz") as whole, zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("logits.npy", whole.read("logits.npy")[:-50])
        archive.writestr("labels.npy", whole.read("labels.npy"))
    assert re.search(r"is corrupt, cut short", line(tmp_path / "a.npz"))
