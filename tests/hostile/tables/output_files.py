"""Files of a classifier's outputs, and flags of the calibrate command, that are wrong in one thing each."""

import gzip
import io
import json
import os
import pickle
import socket
import struct
import tempfile
import warnings
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
from hostile.cases import Call, Case

from focalgeo.calibration import read_calibrator

N, CLASSES = 60, 3
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 2, (N, CLASSES)).astype(np.float32)
LABELS = np.argmax(LOGITS + RNG.gumbel(size=LOGITS.shape), axis=1)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)
GOOD = {"logits": LOGITS, "labels": LABELS}
HEADER = "labels,logits_0,logits_1,logits_2"
LINES = [f"{y},{','.join(f'{z:.6f}' for z in row)}" for y, row in zip(LABELS, LOGITS, strict=True)]
FLAGS = ("--out=out", "--num-resamples=100", "--folds=2")


def calibrate(*arguments):
    return ["calibrate", *arguments, *FLAGS]


def given(*arguments):
    """The command with a good val file and more arguments."""

    def make(folder):
        np.savez(folder / "val.npz", **GOOD)
        return calibrate("--val=val.npz", *arguments)

    return make


def arrays(*more, **changed):
    """val.npz with other arrays."""

    def make(folder):
        np.savez(folder / "val.npz", **{**GOOD, **changed})
        return calibrate("--val=val.npz", *more)

    return make


def has_ece(folder):
    """The surface of the ECE is not 0 everywhere."""
    assert np.load(folder / "out" / "search.npz")["ece"].max() > 0.1


def also_as(name):
    """Good probabilities from elsewhere under this name."""

    def make(folder):
        np.savez(folder / "also.npz", val=PROBS)
        return given(f"--also={name}=also.npz")(folder)

    return make


def probs(array):
    def make(folder):
        np.savez(folder / "val.npz", probs=array, labels=LABELS)
        return calibrate("--val=val.npz")

    return make


def data(name, content, *more):
    """A file of these bytes."""

    def make(folder):
        (folder / name).write_bytes(content)
        return calibrate(f"--val={name}", *more)

    return make


def csv(header=HEADER, lines=LINES, *, encoding="utf-8", end="\n", more=()):
    text = end.join([header, *lines]) + end
    return data("val.csv", text.encode(encoding), *more)


def line(text, *, at=9):
    """A csv file whose line `at` is another; line 1 is the header."""
    return csv(lines=[*LINES[: at - 2], text, *LINES[at - 1 :]])


def cell(text):
    return line(f"0,{text},0.5,0.25")


def header(descr, shape, *, version=b"\x01\x00", order=False):
    text = f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape!r}, }}".encode()
    form = "<H" if version == b"\x01\x00" else "<I"
    return b"\x93NUMPY" + version + struct.pack(form, len(text) + 1) + text + b"\n"


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**members):
    """val.npz of these bytes."""
    return archive([(f"{name}.npy", content) for name, content in members.items()])


def archive(members, *, compression=zipfile.ZIP_STORED, change=lambda content: content):
    def make(folder):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", compression) as found, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a name twice
            for name, content in members:
                with found.open(name, "w", force_zip64=False) as member:
                    member.write(content)
        (folder / "val.npz").write_bytes(change(file.getvalue()))
        return calibrate("--val=val.npz")

    return make


def bits(content, *, local=None, central=None):
    """An archive whose headers say something else: (offset, bytes) in the first header of each kind."""
    content = bytearray(content)
    for mark, change in ((b"PK\x03\x04", local), (b"PK\x01\x02", central)):
        if change:
            at = content.index(mark) + change[0]
            content[at : at + len(change[1])] = change[1]
    return bytes(content)


def zeros(folder):
    """A gigabyte of zeros in a megabyte, in an array of another shape than the labels."""
    with zipfile.ZipFile(folder / "val.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as found:
        with found.open("logits.npy", "w") as member:
            member.write(header("<f4", (N, CLASSES)))
            for _ in range(64):
                member.write(bytes(2**24))
        found.writestr("labels.npy", npy(LABELS))
    return calibrate("--val=val.npz")


def pairs(*, text, files):
    def make(folder):
        for name, content in files.items():
            (folder / name).write_bytes(content)
        return calibrate(f"--val={text}")

    return make


def safetensors(head, body=b"", *, length=None):
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return data("val.safetensors", struct.pack("<Q", len(text) if length is None else length) + text + body)


def tensor(kind, shape, begin, end):
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


def special(make_file, name="val.npz"):
    def make(folder):
        make_file(folder / name)
        return calibrate(f"--val={name}")

    return make


def listen(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path.name)  # relative: such names are short


def sparse(path):
    with path.open("wb") as file:
        file.write(b"labels,logits_0,logits_1\n")
        file.truncate(2**42)


def out(name, make_out=lambda path: None):
    def make(folder):
        np.savez(folder / "val.npz", **GOOD)
        make_out(folder)
        return ["calibrate", "--val=val.npz", f"--out={name}", *FLAGS[1:]]

    return make


def below_a_file(folder):
    (folder / "a").touch()
    return calibrate("--val=a/b.npz")


def torch_file(folder):
    (folder / "val.pt").write_bytes(pickle.dumps({"logits": 1}))
    return calibrate("--val=val.pt")


WRONG = partial(Case, "wrong result")
TRACEBACK = partial(Case, "traceback")
NO_END = partial(Case, "no end")
HOSTILE = partial(Case, "hostile file")
LINE = partial(Case, "unhelpful line")

CSV = [
    WRONG(
        "csv: decimal commas", csv(lines=["2,-1,341,0,5,1,5"] * N), "line 2 has 7 cells, the header 4: write numbers"
    ),
    WRONG("csv: one row longer", line("0,1.5,2.5,3.5,4.5"), "line 9 has 5 cells, the header 4"),
    WRONG("csv: a comma behind every row but the header", csv(lines=[f"{x}," for x in LINES]), "line 2 has 5 cells"),
    WRONG(
        "csv: row names without a header", csv(lines=[f"{i},{x}" for i, x in enumerate(LINES)]), "line 2 has 5 cells"
    ),
    LINE("csv: one row shorter", line("0,1.5,2.5"), "line 9 has 3 cells, the header 4: complete or remove it"),
    LINE("csv: the last row cut", csv(lines=[*LINES[:-1], "1,0.5"]), "line 61 has 2 cells"),
    LINE("csv: a column twice", csv("labels,labels,logits_0,logits_1"), "columns of 'labels' must be"),
    LINE("csv: logits_0 twice", csv("labels,logits_0,logits_0,logits_1"), "columns of 'logits' must be logits_0"),
    LINE("csv: a gap in the columns", csv("labels,logits_0,logits_2,logits_3"), "and are logits_0, logits_2, logits_3"),
    LINE("csv: columns from 1", csv("labels,logits_1,logits_2,logits_3"), "columns of 'logits' must be logits_0"),
    LINE("csv: columns out of order", csv("labels,logits_1,logits_0,logits_2"), "once each and in order"),
    LINE("csv: leading zeros of columns", csv("labels,logits_00,logits_01,logits_02"), "must be logits_0"),
    LINE(
        "csv: columns in the order of text",
        csv(
            "labels," + ",".join(sorted(f"logits_{k}" for k in range(11))),
            [f"{y}," + ",".join(["0.5"] * 11) for y in LABELS],
        ),
        "once each and in order",
    ),
    LINE("csv: full-width digits of columns", csv("labels,logits_０,logits_１,logits_２"), "neither logits nor probs"),
    LINE("csv: logits beside logits_0", csv("labels,logits,logits_0,logits_1"), "columns of 'logits' must be logits_0"),
    LINE("csv: a header in the middle", line(HEADER), "line 9, column 'logits_0' is 'logits_0', no number"),
    LINE("csv: a comment", line("# checked,0,0,0"), r"labels\[7\] is '# checked'"),
    LINE("csv: a comment behind a row", cell("1.0 # sure"), "line 9, column 'logits_0' is '1.0 # sure', no number"),
    LINE("csv: two rows of a header", csv(lines=["class,a,b,c", *LINES]), "line 2, column 'logits_0' is 'a'"),
    LINE("csv: no header", csv(LINES[0]), "has no header: begin it with"),
    LINE("csv: semicolons", csv("labels;logits_0;logits_1"), "columns are separated by semicolons"),
    LINE("csv: tabs", csv("labels\tlogits_0"), "columns are separated by tabs"),
    LINE("csv: UTF-16", csv(encoding="utf-16"), "it holds zero bytes: UTF-16 should be UTF-8"),
    LINE("csv: UTF-16 without its mark", csv(encoding="utf-16-le"), "UTF-16 should be UTF-8"),
    LINE("csv: Latin-1", line("0,\xe9,0,0"), "line 9, column 'logits_0' is '\xe9'"),
    LINE("csv: bytes that are no text", data("val.csv", b"labels,logits_0,logits_1\n0,\xff,1\n"), "is corrupt"),
    LINE("csv: only a header", csv(lines=[]), "val has 0 examples"),
    LINE("csv: only blank lines", data("val.csv", b"\n\n \n"), "neither logits nor probs"),
    LINE("csv: a label with a fraction", line("1.5,0,0,0"), r"labels\[7\] is '1.5'"),
    LINE("csv: a label of full-width digits", line("１,0,0,0"), r"labels\[7\] is"),
    LINE("csv: no label", line(",0,0,0"), r"labels\[7\] is ''"),
    LINE("csv: a sparse terabyte", special(sparse, "val.csv"), "of memory"),
    WRONG("csv: a quote swallows lines", line('"0,1.0,2.0,3.0', at=5), "line 5 has a quote that is not closed"),
    WRONG(
        "csv: two quotes swallow the lines between",
        csv(
            HEADER + ",group",
            [*(f"{x},a" for x in LINES[:9]), f'{LINES[9]},"a', *(f"{x},a" for x in LINES[10:30]), f'{LINES[30]},a"']
            + [f"{x},b" for x in LINES[31:]],
        ),
        "line 11 has a quote that is not closed",
    ),
    WRONG("csv: text behind a quote", line('"0"1,1.0,2.0,3.0'), "line 9 has text behind a cell in quotes: write a"),
    LINE(
        "csv: a title above the header", csv("made by x", [HEADER, *LINES]), "first line is 'made by x' and no header"
    ),
    LINE("csv: a comment above the header", csv("# a, b", [HEADER, *LINES]), "first line is '# a' and no header"),
    LINE("csv: Excel's separator", csv("sep=,", [HEADER, *LINES]), "first line is 'sep=' and no header: begin"),
    LINE("csv: gzip", data("val.csv", gzip.compress(HEADER.encode())), "it is packed by gzip: unpack it"),
    LINE("csv: a workbook", data("val.csv", b"PK\3\4\0\0"), "it is a zip archive or a workbook"),
    WRONG(
        "csv: a line break inside quotes, which embraces a row",
        csv(HEADER + ",x", ['0,1,2,3,"a', '1,2,1,3,a"', *(f"{x},b" for x in LINES)]),
        "line 2 has a quote that is not closed",
    ),
    LINE("an address", lambda folder: calibrate("--val=https://x.org/a.npz"), "is an address: fetch the file"),
    LINE(
        "arrays after a semicolon", lambda folder: calibrate("--val=logits=z.npy;labels=y.npy"), "put a comma between"
    ),
    LINE("arrays in capitals", lambda folder: calibrate("--val=LOGITS=z.npy"), "did you mean logits="),
    LINE(
        "a home that is none", lambda folder: calibrate("--val=~no-such-user/a.npz"), "no home folder is known for it"
    ),
    *(
        WRONG(f"csv: a cell {text!r}", cell(text), "line 9, column 'logits_0' is .*, no number: mend the cell")
        for text in ("1_000", "１.5", "0x1p3", "1e", "+-1", "1.2.3", "1 000", "--1", "1e5.5")
    ),
    *(
        LINE(f"csv: a cell {text!r}", cell(text), "line 9, column 'logits_0' is .*, no number: mend the cell")
        for text in ("nan", "inf", "-Infinity", "NA", "", " ", "null", "1j", "1.5f", '"1,5"', '"1,234.5"', "1;5", "\v1")
    ),
    LINE("csv: zero bytes", data("val.csv", f"{HEADER}\n0,1\0,2,3\n".encode()), "it holds zero bytes"),
    LINE("csv: beyond float64", cell("1e999"), "logits of 1 examples are NaN or infinite, the first in row 7"),
    LINE("csv: beyond sums", cell("-1e31"), r"logits run up to 1e\+31, beyond 1e\+30"),
]
RIGHT = [
    ("csv: blank lines, spaces, quotes, Windows' ends and its mark", "\ufeff" + HEADER.replace(",", " , ")),
    ("csv: everything quoted", '"labels","logits_0","logits_1","logits_2"'),
]
CSV += [
    WRONG(
        RIGHT[0][0],
        csv(
            RIGHT[0][1],
            ["", *LINES[:5], "  ", *LINES[5:9], f" {LINES[9].replace(',', ' , ')}", *LINES[10:]],
            end="\r\n",
        ),
        "to use: ",
        0,
        120,
    ),
    WRONG(
        RIGHT[1][0],
        csv(RIGHT[1][1], [",".join(f'"{x}"' for x in each.split(",")) for each in LINES]),
        "to use: ",
        0,
        120,
    ),
]

ARRAYS = [
    LINE("labels counted from 1", arrays(labels=LABELS + 1), "these run from 1 to 3: give labels - 1"),
    LINE("labels of -1", arrays(labels=np.where(LABELS == 1, -1, LABELS)), "if -1 stands for no label, leave these"),
    LINE(
        "labels (n, 1)",
        arrays(labels=LABELS[:, None]),
        r"labels have shape \(60, 1\): give class numbers, labels\[:, 0\]",
    ),
    LINE("labels one-hot", arrays(labels=np.eye(3)[LABELS]), "labels.argmax"),
    LINE("labels (n, 1, 1)", arrays(labels=LABELS[:, None, None]), r"labels have shape \(60, 1, 1\), logits \(60, 3\)"),
    LINE("labels 0-d", arrays(labels=np.int32(1)), r"labels have shape \(\)"),
    LINE("labels beyond int64", arrays(labels=np.full(N, 2**64 - 1, np.uint64)), "is 18446744073709551615: with 3"),
    LINE("labels as numbers with fractions", arrays(labels=LABELS + 0.5), r"labels\[0\] is \d.5, no class number"),
    LINE("labels of NaN", arrays(labels=LABELS * np.nan), r"labels\[0\] is nan, no class number: give"),
    LINE("labels of infinity", arrays(labels=np.full(N, np.inf)), r"labels\[0\] is inf, no class number: give"),
    LINE("group (n, 1)", arrays(group=LABELS[:, None]), r"group has shape \(60, 1\): give group\[:, 0\]"),
    LINE("labels of truth values", arrays(labels=LABELS > 0), "labels are bool: give class numbers as integers"),
    LINE("labels of dates", arrays(labels=LABELS.astype("M8[D]")), r"labels are datetime64\[D\]: give class numbers"),
    LINE("labels of bytes", arrays(labels=LABELS.astype("S")), r"labels are \|S\d+: give class numbers"),
    LINE("labels of names", arrays(labels=np.array(["cat", "dog", "cow"])[LABELS]), r"labels\[0\] is"),
    LINE(
        "logits that float32 takes for 0",
        arrays(logits=LOGITS.astype(np.float64) * 1e-50),
        "float32 does not hold which of the logits of",
    ),
    LINE("logits 1-d", arrays(logits=LOGITS[:, 0]), r"of two classes give both, np.stack\(\[0 \* z, z\], 1\)"),
    LINE("probs 1-d", probs(PROBS[:, 0]), r"of two classes give both, np.stack\(\[1 - p, p\], 1\)"),
    LINE(
        "logits of one class",
        arrays(logits=LOGITS[:, :1]),
        r"logits have 1 class: .*np.concatenate\(\[0 \* z, z\], 1\)",
    ),
    LINE("logits of no class", arrays(logits=LOGITS[:, :0]), "logits have 0 classes: give two or more$"),
    LINE("logits 3-d", arrays(logits=LOGITS[:, None]), r"logits have shape \(60, 1, 3\): give \[examples, classes\]$"),
    LINE("logits 0-d", arrays(logits=np.float32(1)), r"logits have shape \(\)"),
    LINE("logits of nothing", arrays(logits=LOGITS[:0], labels=LABELS[:0]), "val has 0 examples"),
    LINE("logits of truth values", arrays(logits=LOGITS > 0), "logits are of type bool: give numbers"),
    LINE("logits of complex numbers", arrays(logits=LOGITS + 0j), "logits are of type complex64"),
    LINE("logits of dates", arrays(logits=LOGITS.astype("M8[s]")), r"logits are of type datetime64\[s\]"),
    LINE("logits of records", arrays(logits=np.zeros((N, 3), "f4,f4")), "logits are of type"),
    LINE(
        "logits that overflowed in float16", arrays(logits=np.full((N, 3), np.inf, "f2")), "of 60 examples are NaN or"
    ),
    LINE("logits of 1e300", arrays(logits=np.float64(LOGITS) * 1e300), r"beyond 1e\+30"),
    LINE("probs in percent", probs(100 * PROBS), "rows of probs do not sum to 1"),
    LINE("probs that are log-probabilities", probs(np.log(PROBS)), "no probability: if these are logits"),
    LINE("group of other bytes", arrays(group=np.array([b"\xff\xfe"] * N)), "group hold bytes that are no text"),
    LINE("group of two lines", arrays(group=np.array(["a\nb", "c"] * 30)), "is no text of one line"),
    LINE("group of half characters", arrays(group=np.array(["a\ud800", "c"] * 30)), "is no text of one line"),
    LINE(
        "group of code points that are none",
        arrays(group=np.full(N, 0x7FFFFFFF, "<u4").view("<U1")),
        "that are no text",
    ),
    LINE(
        "labels of code points that are none",
        arrays(labels=np.full(N, 0x7FFFFFFF, "<u4").view("<U1")),
        "that are no text",
    ),
    LINE("group of records", arrays(group=np.zeros(N, "f4,f4")), "group is of type"),
    LINE("group without a date", arrays(group=np.full(N, "NaT", "M8[D]")), "group of 60 examples is missing"),
    TRACEBACK("npz: a shape beyond memory", npz(logits=header("<f8", (10**12, 10)), labels=npy(LABELS)), "is corrupt"),
    TRACEBACK(
        "npz: a shape beyond int64", npz(logits=header("<f8", (10**30, 10)), labels=npy(LABELS)), "declares shape"
    ),
    TRACEBACK("npz: a shape below 0", npz(logits=header("<f8", (-60, 3)), labels=npy(LABELS)), "declares shape"),
    TRACEBACK(
        "npz: a shape of many digits", npz(logits=header("<f8", (10**900, 1)), labels=npy(LABELS)), "declares shape"
    ),
    TRACEBACK(
        "npz: more dimensions than NumPy has", npz(logits=header("<f8", (1,) * 90), labels=npy(LABELS)), "is corrupt"
    ),
    NO_END("npz: labels of no width", npz(logits=npy(LOGITS), labels=header("<U0", (10**10,))), "labels have shape"),
    TRACEBACK("npz: a type that is none", npz(logits=header("<q9", (60, 3)), labels=npy(LABELS)), "is corrupt"),
    TRACEBACK("npz: a header nested deep", npz(logits=header([[]] * 9, "(" * 900), labels=npy(LABELS)), "is corrupt"),
    LINE(
        "npz: a header of version 9",
        npz(logits=header("<f8", (60, 3), version=b"\x09\0"), labels=npy(LABELS)),
        "corrupt",
    ),
    WRONG(
        "npz: bytes behind an array", npz(logits=npy(LOGITS) + npy(LOGITS), labels=npy(LABELS)), "and .* bytes follow"
    ),
    LINE(
        "npz: an array cut short",
        npz(logits=npy(LOGITS)[:-8], labels=npy(LABELS)),
        "declares shape .60, 3. .*712 bytes",
    ),
    WRONG(
        "npz: a member twice",
        archive([("logits.npy", npy(LOGITS)), ("logits.npy", npy(-LOGITS)), ("labels.npy", npy(LABELS))]),
        "holds logits twice",
    ),
    TRACEBACK(
        "npz: members that are no arrays", archive([("logits", b"1, 2"), ("labels", b"1")]), "neither logits nor"
    ),
    TRACEBACK("npz: members that are text", archive([("logits.npy", b"1, 2"), ("labels.npy", b"1")]), "is corrupt"),
    LINE("npz: objects", arrays(labels=np.array([None] * N)), "pickled objects, which could run code"),
    HOSTILE("npz: a type of objects nested in a record", arrays(logits=np.zeros(N, "O,f4")), "pickled objects"),
    TRACEBACK(
        "npz: encrypted",
        archive(
            [("logits.npy", npy(LOGITS)), ("labels.npy", npy(LABELS))],
            change=partial(bits, local=(6, b"\1"), central=(8, b"\1")),
        ),
        "logits.npy is encrypted: pack it without a password",
    ),
    TRACEBACK(
        "npz: a compression that nobody knows",
        archive(
            [("logits.npy", npy(LOGITS)), ("labels.npy", npy(LABELS))],
            change=partial(bits, local=(8, b"\x63\0"), central=(10, b"\x63\0")),
        ),
        "is corrupt",
    ),
    HOSTILE(
        "npz: a member that declares four gigabytes",
        archive(
            [("logits.npy", npy(LOGITS)), ("labels.npy", npy(LABELS))],
            change=partial(bits, central=(24, b"\xf0\xff\xff\xff")),
        ),
        "logits.npy declares 4.0 GiB and holds at most",
    ),
    HOSTILE("npz: a gigabyte of zeros in a megabyte", zeros, "declares shape", seconds=60),
    LINE("npz: a zip file behind other bytes", archive([], change=lambda content: b"x" * 99 + content), "corrupt"),
    LINE("npz: text", data("val.npz", b"logits\n"), "it does not begin as one"),
    LINE("npz: a pickle", data("val.npz", pickle.dumps(1)), "pickled objects"),
    TRACEBACK(
        "npy: a shape beyond memory",
        pairs(
            text="logits=z.npy,labels=y.npy",
            files={"z.npy": header("<f8", (10**12, 10)), "y.npy": npy(LABELS)},
        ),
        "z.npy is corrupt",
    ),
    WRONG(
        "npy: two arrays in a file",
        pairs(text="logits=z.npy,labels=y.npy", files={"z.npy": npy(LOGITS) * 2, "y.npy": npy(LABELS)}),
        "the array declares shape",
    ),
    WRONG(
        "npy: logits twice",
        pairs(text="logits=z.npy,logits=w.npy,labels=y.npy", files={"z.npy": npy(LOGITS), "w.npy": npy(LOGITS)}),
        "says the same array twice",
    ),
    LINE("safetensors: a header that is too long", safetensors({}, length=2**60), "is corrupt"),
    LINE("safetensors: a header nested deep", safetensors(b'{"logits":' + b"[" * 10**5), "is corrupt"),
    LINE(
        "safetensors: a shape beyond memory", safetensors({"logits": tensor("F32", [10**12, 10], 0, 8)}), "is corrupt"
    ),
    LINE("safetensors: offsets beyond the end", safetensors({"logits": tensor("F32", [60, 3], 0, 720)}), "is corrupt"),
    LINE(
        "safetensors: tensors that overlap",
        safetensors({"logits": tensor("U8", [4], 0, 4), "labels": tensor("U8", [4], 2, 6)}, bytes(6)),
        "is corrupt",
    ),
    LINE("safetensors: a type that is none", safetensors({"logits": tensor("X9", [1], 0, 1)}, b"0"), "is corrupt"),
    LINE(
        "safetensors: numbers of 8 bits",
        safetensors({"logits": tensor("F8_E4M3", [1], 0, 1), "labels": tensor("U8", [1], 1, 2)}, b"00"),
        "val",
    ),
]

FILES = [
    LINE("a folder as npz", special(Path.mkdir), "val.npz is a folder: give a file"),
    LINE("a folder as safetensors", special(Path.mkdir, "val.safetensors"), "val.safetensors is a folder: give a file"),
    LINE("a folder without a suffix", special(Path.mkdir, "val"), "val is a folder: give a file"),
    NO_END("a pipe as npz", special(os.mkfifo), "val.npz is a pipe: give a file"),
    NO_END("a pipe as csv", special(os.mkfifo, "val.csv"), "val.csv is a pipe: give a file"),
    NO_END("a pipe as safetensors", special(os.mkfifo, "val.safetensors"), "is a pipe: give a file"),
    LINE("a socket", special(listen), "val.npz is a socket: give a file"),
    NO_END(
        "a device without end",
        special(lambda path: path.symlink_to("/dev/zero"), "val.csv"),
        "is a device: give a file",
    ),
    LINE("a device", lambda folder: calibrate("--val=/dev/null"), "/dev/null is a device: give a file"),
    LINE(
        "a link to nothing",
        special(lambda path: path.symlink_to("gone.npz")),
        "is a link to gone.npz, where nothing is",
    ),
    LINE("a loop of links", special(lambda path: path.symlink_to(path.name)), "symbolic links"),
    LINE("a name that is too long", lambda folder: calibrate(f"--val={'x' * 300}.npz"), "File name too long"),
    LINE("a path that is too long", lambda folder: calibrate(f"--val={'x/' * 3000}a.npz"), "File name too long"),
    TRACEBACK(
        "a name with a zero byte",
        lambda folder: calibrate("--val=a\0.npz"),
        r"a\\x00.npz holds what is no UTF-8 text on one line",
    ),
    TRACEBACK("a name with a line break", lambda folder: calibrate("--val=a\nb.npz"), r"--val=a\\nb.npz holds"),
    TRACEBACK("a name that is not UTF-8", lambda folder: calibrate("--val=a\udcff.npz"), r"--val=a\\udcff.npz holds"),
    TRACEBACK("an output folder that is not UTF-8", out("a\udcff"), r"--out=a\\udcff holds"),
    LINE(
        "a file that is not there",
        lambda folder: calibrate("--val=val.npz"),
        "No such file or directory; check the path",
    ),
    LINE("a file without a suffix", data("a", b"x"), "focalgeo: a is of no known format: give one of"),
    LINE("a file below a file", below_a_file, "cannot read a/b.npz"),
    LINE("an empty file", data("val.npz", b""), "val.npz is empty"),
    LINE("a suffix that is none", data("val.txt", b"x"), "is of no known format"),
    HOSTILE("a torch file that holds more than tensors", torch_file, "needs torch|it holds more than tensors"),
]

COMMAND = [
    WRONG("an empty --test", given("--test="), "--test= has no value: give one or leave the flag out"),
    LINE("an empty --val", lambda folder: calibrate("--val="), "--val= has no value"),
    LINE("an empty --labels-key", given("--labels-key="), "--labels-key= has no value"),
    LINE("an empty argument", given(""), "an argument is empty"),
    LINE("spaces alone", given("--test= "), "--test= has no value"),
    WRONG("--val twice", given("--val=other.npz"), "--val is given 2 times: give it once"),
    WRONG("--seed twice", given("--seed=1", "--seed=2"), "--seed is given 2 times"),
    WRONG("--seed=1_000", given("--seed=1_000"), "--seed: invalid int value: '1_000', give a whole number"),
    WRONG("--seed in full-width digits", given("--seed=１"), "--seed: invalid int value"),
    WRONG("--trained-gamma=1_0", given("--trained-gamma=1_0"), "--trained-gamma: invalid float value: '1_0'"),
    LINE("--trained-gamma=inf", given("--trained-gamma=inf"), "--trained-gamma is inf: it must be from 0 to 100"),
    LINE("--num-bins=1e6", given("--num-bins=1e6"), "--num-bins: invalid int value: '1e6', give a whole number"),
    Case("wrong result", "one bin", given("--num-bins=1"), "report: ", 0, check=has_ece),
    Case("unhelpful line", "sure and right", arrays(logits=1e6 * np.eye(CLASSES)[LABELS]), "report: ", 0),
    Case("traceback", "no method that is fitted", given("--methods=uncalibrated"), "report: ", 0),
    Case(
        "traceback",
        "the loss-implied map alone",
        given("--methods=loss_implied_map", "--trained-gamma=2"),
        "to use: uncalibrated",
        0,
    ),
    LINE(
        "a loss-implied method without a gamma",
        given("--methods=loss_implied_temperature_scaling"),
        "loss_implied_temperature_scaling needs the gamma .* give --trained-gamma=",
    ),
    LINE("an unknown method", given("--methods=vektor_scaling"), "--methods is 'vektor_scaling': did you mean 'vector"),
    LINE("--also under a method's own name", also_as("isotonic"), "--also names isotonic, a method of focalgeo's own"),
    NO_END("--num-bins=1000000", given("--num-bins=1000000"), "it must be from 1 to 10000"),
    NO_END("more bins than examples", given("--num-bins=10000"), "but val has 60 examples: give fewer bins than"),
    NO_END(
        "--num-resamples=100000000",
        lambda folder: [*given()(folder)[:-2], "--num-resamples=100000000"],
        "from 100 to 100000",
    ),
    NO_END(
        "--num-resamples=1000000",
        lambda folder: [*given()(folder)[:-2], "--num-resamples=1000000"],
        "from 100 to 100000",
    ),
    LINE("a number of 5,000 digits", given(f"--seed={'9' * 5000}"), "--seed: invalid int value"),
    LINE("a flag of 5,000 letters", given(f"--{'x' * 5000}"), "the flag is"),
    LINE("an argument of 5,000 letters", given("x" * 5000), "unknown argument"),
    LINE(
        "--folds beyond the examples", lambda folder: [*given()(folder)[:-1], "--folds=61"], "val has 60 examples: give"
    ),
    LINE(
        "--out that is a file", out("out", lambda folder: (folder / "out").touch()), "is a file, not a folder; choose"
    ),
    LINE("--out below a file", out("val.npz/out"), "cannot write .*choose another --out"),
    LINE("--out at the root", out("/"), "choose another --out"),
    LINE("--out where the inputs are", out("."), "choose another --out"),
    LINE("--out with a name too long", out("x" * 300), "File name too long"),
    LINE(
        "--out that is a link to nothing",
        out("out", lambda folder: (folder / "out").symlink_to("gone")),
        "link to gone",
    ),
    LINE("--out in /proc", out("/proc/out"), "cannot write /proc/out"),
    LINE("--out that is a loop of links", out("out", lambda folder: (folder / "out").symlink_to("out")), "link"),
]


def finished(*, change, more=()):
    """The folder of a command that ended, with one thing changed, and the same command again."""

    def make(folder):
        from focalgeo.calibrate import main

        arguments = given(*more)(folder)
        assert main(arguments[1:]) == 0
        change(folder / "out")
        return arguments

    return make


def as_folder(path):
    path.unlink()
    path.mkdir()


COMMAND += [
    WRONG(
        "metrics.jsonl and calibrator.json damaged, the same command again",
        finished(
            change=lambda path: [(path / name).write_text("{x\n") for name in ("metrics.jsonl", "calibrator.json")]
        ),
        "to use: ",
        0,
        180,
        lambda folder: read_calibrator(folder / "out" / "calibrator.json"),
    ),
    TRACEBACK(
        "manifest.json damaged, the same command again",
        finished(change=lambda path: (path / "manifest.json").write_text("{x\n")),
        "manifest.json is corrupt; restore it or choose another --out",
    ),
    TRACEBACK(
        "metrics.jsonl is a folder, the same command again",
        finished(change=lambda path: as_folder(path / "metrics.jsonl")),
        "metrics.jsonl cannot be written, something else stands there",
    ),
]


CALIBRATOR = {
    "format": "focalgeo-calibrator",
    "version": 2,
    "method": "focal_temperature_scaling",
    "criterion": "ece",
    "num_classes": 3,
    "parameters": {"gamma": 0.5, "temperature": 1.5},
}


def calibrator(**changed):
    return text_of(json.dumps({**CALIBRATOR, **changed}))


def text_of(text):
    def call():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "calibrator.json")
            path.write_text(text)
            return read_calibrator(path)

    return call


def parameters(**changed):
    return calibrator(parameters={**CALIBRATOR["parameters"], **changed})


def at(make_file):
    def call():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "calibrator.json")
            make_file(path)
            return read_calibrator(path)

    return call


CALLS = [
    Call("traceback", "calibrator nested deep", text_of("[" * 10**5), "is no JSON"),
    Call("traceback", "calibrator with an integer of 5,000 digits", parameters(gamma=10**4000), "out of range"),
    Call("traceback", "calibrator with gamma 10^400", parameters(gamma=10**400), "out of range"),
    Call("traceback", "calibrator with gamma 1e39", parameters(gamma=1e39), "out of range"),
    Call(
        "traceback", "calibrator whose criterion is a list", calibrator(criterion=[1]), r"criterion is \[1\], not nll"
    ),
    Call("wrong result", "calibrator whose criterion is unknown", calibrator(criterion="mse"), "criterion is mse, not"),
    Call("traceback", "calibrator whose method is a list", calibrator(method=[{}]), r"method in .* is '\[\{\}\]'"),
    Call(
        "traceback",
        "calibrator of 10^12 classes",
        calibrator(num_classes=10**12),
        "num_classes is 1000000000000, out of",
    ),
    Call(
        "unhelpful line", "calibrator of 3.0 classes", calibrator(num_classes=3.0), "num_classes is 3.0, out of range"
    ),
    Call(
        "unhelpful line",
        "calibrator of true classes",
        calibrator(num_classes=True),
        "num_classes is true, out of range",
    ),
    Call("wrong result", "calibrator with a temperature below 0", parameters(temperature=-1.5), "out of range"),
    Call(
        "wrong result",
        "calibrator with a temperature of each class",
        parameters(temperature=[1, 2, 3, 4]),
        "out of range",
    ),
    Call("wrong result", "calibrator with a list of one temperature", parameters(temperature=[1.5]), "out of range"),
    Call("wrong result", "calibrator with a temperature near 0", parameters(temperature=1e-40), "out of range"),
    Call("unhelpful line", "calibrator with a gamma of text", parameters(gamma="0.5"), "out of range"),
    Call("unhelpful line", "calibrator with a gamma of null", parameters(gamma=None), "out of range"),
    Call("wrong result", "calibrator with a parameter that is a truth value", parameters(gamma=True), "out of range"),
    Call("wrong result", "calibrator with NaN", parameters(other=float("nan")), "is no JSON"),
    Call("unhelpful line", "calibrator that is a list", text_of("[]"), "is no calibrator"),
    Call("unhelpful line", "calibrator of a long version", calibrator(version="9\n" * 900), "is of version 9"),
    Call("no end", "calibrator that is a pipe", at(os.mkfifo), "is a pipe: give a file"),
    Call(
        "no end",
        "calibrator that is a device",
        lambda: read_calibrator("/dev/zero"),
        "is a device: give a file",
    ),
    Call("unhelpful line", "calibrator that is a folder", at(Path.mkdir), "is a folder: give a file"),
    Call(
        "unhelpful line",
        "calibrator with a zero byte in its name",
        lambda: read_calibrator("a\0"),
        "cannot read a.x00",
    ),
]

CASES = [*CSV, *ARRAYS, *FILES, *COMMAND, *CALLS]
