"""Data sets: folders whose roles are guessed, hostile archives and images, sizes that do not add up, strange names."""

import bz2
import gzip
import io
import os
import socket
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from hostile.cases import ROOT, Call, Case
from PIL import Image

from focalgeo.data import load_dataset, read_embeddings

Files = Mapping[str, bytes]
QUICK = f"--config={ROOT}/configs/digits.py:quick"
LABELS = ("bee", "cat")
HEADER = b"From: someone\n\n"


def picture(value: int = 0, size: tuple[int, int] = (4, 4), image_format: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((*size, 3), value, np.uint8)).save(stream, image_format, **options)
    return stream.getvalue()


def animation(image_format: str) -> bytes:
    stream = io.BytesIO()
    frames = [Image.fromarray(np.full((4, 4, 3), value, np.uint8)) for value in (0, 255)]
    frames[0].save(stream, image_format, save_all=True, append_images=frames[1:])
    return stream.getvalue()


def claimed(width: int, height: int) -> bytes:
    """A PNG whose header claims this size; of its pixels there is next to nothing."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes(100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def images(*parents: str, each: int = 3) -> Files:
    """Path -> image, `each` in bee and in cat below every parent; no two images are the same."""
    folders = [f"{parent}/{name}".lstrip("/") for parent in parents for name in LABELS]
    return {f"{folder}/{i}.png": picture(10 * at + i) for at, folder in enumerate(folders) for i in range(each)}


def flat(*folders: str) -> Files:
    return {f"{folder}/{index}.png": picture(index) for folder in folders for index in range(4)}


def posts(*parents: str, each: int = 12) -> Files:
    groups = [f"{parent}/{group}".lstrip("/") for parent in parents for group in ("rec.autos", "sci.space")]
    return {
        f"{group}/{100 + index}": HEADER + group.encode() * (index + 1) for group in groups for index in range(each)
    }


TREES = {
    "train.txt": b"(3 (2 It) (4 works))\n(1 (2 so) (0 bad))\n(0 Bad)\n",
    "dev.txt": b"(4 (2 it) (3 shines))\n(1 dull)\n",
    "test.txt": b"(1 (2 not) (2 good))\n(3 fine)\n",
}
TINY = {
    f"train/n0{k}/images/n0{k}_{i}.JPEG": picture(20 * k + i, image_format="JPEG") for k in (1, 2) for i in (0, 1, 2)
}
TINY |= {f"val/images/val_{i}.JPEG": picture(90 + i, image_format="JPEG") for i in (0, 1)}
TINY |= {"val/val_annotations.txt": b"val_0.JPEG\tn01\t0\t0\nval_1.JPEG\tn02\t0\t0\n", "words.txt": b"n01\tgoldfish\n"}


def write(folder: Path, files: Files) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def tar(path: Path, files: Files, mode: str = "w", **changes) -> Path:
    """An archive of the files; the first member's header is changed."""
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = 0 if "type" in changes else len(data)
            for field, value in changes.items():
                setattr(member, field, value)
            archive.addfile(member)
            archive.fileobj.write(data + bytes(-len(data) % 512) if not changes.get("type") else b"")
            changes = {}
    return path


def archived(path: Path, files: Files, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def made(files: Files, change: Callable[[Path], object] = lambda folder: None) -> Callable[[Path], Path]:
    """make(folder) writes the files there, changes something, and gives the folder."""

    def make(folder: Path) -> Path:
        change(write(folder, files))
        return folder

    return make


def loading(make: Callable[[Path], str | os.PathLike], kind: str = "folder", **options) -> Callable[[], object]:
    """A call that makes the input in a folder of its own and loads it."""

    def call() -> object:
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "source")
            source.mkdir()
            options.setdefault("cache_dir", Path(folder, "cache"))
            try:
                return load_dataset(f"{kind}:{os.fspath(make(source))}", **options)
            finally:
                options.pop("cache_dir", None)

    return call


def loads(kind: str, name: str, make: Callable, says: str, *, source: str = "folder", **options) -> Call:
    return Call(kind, name, loading(make, source, **options), says)


def roles(name: str, files: Files, says: str, source: str = "folder") -> Call:
    return loads("wrong result", name, made(files), says, source=source)


def linked_in_a_circle(folder: Path) -> None:
    (folder / "train/bee/again").symlink_to(folder / "train")


def linked_to_each_other(folder: Path) -> None:
    (folder / "train/bee/other").symlink_to(folder / "train/cat")
    (folder / "train/cat/other").symlink_to(folder / "train/bee")


def doubled_by_links(folder: Path) -> None:
    """Links that make 2^40 paths of one folder, without a loop."""
    for depth in range(40):
        level = folder / f"links/{depth}"
        level.mkdir(parents=True)
        for name in "ab":
            (level / name).symlink_to(folder / f"links/{depth + 1}")
    write(folder, {"links/40/x.png": picture()})


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            listening.bind(path.name)
        finally:
            os.chdir(here)


def oversized(path: Path, files: Files) -> Path:
    """A zip archive whose first member declares four terabytes, in both of its headers."""
    data = bytearray(archived(path, files, zipfile.ZIP_DEFLATED).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(mark) + offset
        data[at : at + 4] = struct.pack("<I", 0xFFFFFFFE)
    path.write_bytes(data)
    return path


def strange_compression(path: Path, files: Files) -> Path:
    data = bytearray(archived(path, files).read_bytes())
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = data.index(mark) + offset
        data[at : at + 2] = struct.pack("<H", 77)
    path.write_bytes(data)
    return path


def shortened(path: Path) -> Path:
    """A zip archive in whose directory one member's comment reaches over the next."""
    data = bytearray(archived(path, WHOLE).read_bytes())
    first = data.index(b"PK\x01\x02")
    second = data.index(b"PK\x01\x02", first + 1)
    third = data.index(b"PK\x01\x02", second + 1)
    data[first + 32 : first + 34] = struct.pack("<H", third - second)
    path.write_bytes(data)
    return path


def renamed(path: Path) -> Path:
    """A zip archive in whose directory one image ends in .pnf."""
    data = archived(path, WHOLE).read_bytes()
    at = data.rindex(b"train/bee/1.png")
    path.write_bytes(data[:at] + b"train/bee/1.pnf" + data[at + 15 :])
    return path


def zeros_in_bzip2(path: Path) -> Path:
    """An archive of some kilobytes that holds a file of 10 GiB; what comes after it is never reached."""
    member = tarfile.TarInfo("notes.bin")
    member.size = 10 << 30
    block = bz2.compress(bytes(64 << 20))
    path.write_bytes(bz2.compress(member.tobuf()) + block * 40)
    return path


def with_zeros(path: Path) -> Path:
    """An archive of some kilobytes with 2 GiB of zeros at its end."""
    whole = tar(path.with_suffix(""), WHOLE).read_bytes()
    path.write_bytes(bz2.compress(whole) + bz2.compress(bytes(64 << 20)) * 32)
    return path


def with_long_name(path: Path) -> Path:
    """An archive whose first header declares a name of a terabyte."""
    member = tarfile.TarInfo("././@LongLink")
    member.type, member.size = tarfile.GNUTYPE_LONGNAME, 1 << 40
    path.write_bytes(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(4096)))
    return path


def vectors(content: bytes, name: str = "vectors.txt") -> Callable[[], object]:
    def call() -> object:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            if name.endswith(".zip"):
                archived(path, {"vectors.txt": content}, zipfile.ZIP_DEFLATED)
            else:
                path.write_bytes(content)
            return read_embeddings(path, ("", "<unk>", "bee", "cat"))

    return call


def vectors_through_a_pipe() -> object:
    with tempfile.TemporaryDirectory() as folder:
        os.mkfifo(Path(folder, "vectors.txt"))
        return read_embeddings(Path(folder, "vectors.txt"), ("", "<unk>", "bee"))


def deep_tree(depth: int) -> bytes:
    return b"(1 (2 a) " * depth + b"(3 b)" + b")" * depth + b"\n"


def running(make: Callable[[Path], str], *arguments: str) -> Callable[[Path], list[str]]:
    """make(folder) gives the name of a data set; the command runs on it."""
    return lambda folder: ["run", QUICK, f"--config.data.name={make(folder)}", "--workdir=w", *arguments]


def in_folder(files: Files, change: Callable[[Path], object] = lambda folder: None) -> Callable[[Path], str]:
    return lambda folder: f"folder:{made(files, change)(folder / 'images').name}"


NO_TRAIN = r"has no train folder"
DEEPER = r"lies deeper than <class>/<image>.*train, val and test"
WHOLE = images("train", "test")
MANY = images("train", each=12)

GUESSED_ROLES = [
    roles("only test", images("test"), NO_TRAIN),
    roles("only val", images("val"), NO_TRAIN),
    roles("test and val without train", images("test", "val"), NO_TRAIN),
    roles("only test, in a folder", images("photos/test"), NO_TRAIN),
    roles("only test, with a folder inside it", images("test/photos"), NO_TRAIN),
    roles("only Test", images("Test"), NO_TRAIN),
    roles("only valid", images("valid"), NO_TRAIN),
    roles("only dev", images("dev"), NO_TRAIN),
    roles("only validation", images("validation"), NO_TRAIN),
    roles("only photos-test", images("photos-test"), NO_TRAIN),
    roles("train and valid", images("train", "valid"), "stands beside train, val and test.*rename"),
    roles("train and dev", images("train", "dev", "test"), "stands beside train, val and test"),
    roles("train and Test", images("train", "Test"), "stands beside train, val and test"),
    roles("Train and Test", images("Train", "Test"), DEEPER),
    roles("training and testing", images("training", "testing"), DEEPER),
    roles("photos-train and photos-test", images("photos-train", "photos-test"), DEEPER),
    roles("two folds", images("fold1", "fold2"), DEEPER),
    roles("classes in classes", images("train", "train/cat", "test"), DEEPER),
    roles("train and test without classes", flat("train", "test"), "test and train are names of splits"),
    roles("train, val and other without classes", flat("train", "val", "other"), "train and val are names of splits"),
    roles("train-images and test-images", flat("train-images", "test-images"), "are names of splits"),
    roles(
        "test beside a class", flat("other", "test"), "test is the name of a split and stands beside the class other"
    ),
    *(
        roles(f"only {name}", images(name), NO_TRAIN)
        for name in ("testdata", "evalset", "TestImages", "tests", "held_out")
    ),
    roles("trainset and testset without classes", flat("trainset", "testset"), "are names of splits"),
    roles("TrainImages and TestImages without classes", flat("TrainImages", "TestImages"), "are names of splits"),
    roles("Kaggle's test", flat("cat", "dog", "test"), "test is the name of a split and stands beside the class cat"),
    roles("validation beside classes", flat("negative", "positive", "Validation"), "Validation is the name of a split"),
    roles("holdout in a folder", flat("x/bee", "x/holdout"), "holdout is the name of a split.*rename it"),
    roles("only test, without classes", flat("test"), "one class, test"),
    roles("images without an ending", {**WHOLE, "train/cat/9": picture()}, "train/cat/9 has no ending that is known"),
    roles("images numbered by wget", {**WHOLE, "test/cat/3.png.1": picture()}, "3.png.1 has no ending that is known"),
    roles("a class of another format", {**MANY, "train/dog/1.jxl": b"x"}, "train/dog/1.jxl has no ending"),
    roles("arrays in a class", {**flat("a", "b"), "b/9.npy": b"x"}, "b/9.npy has no ending that is known"),
    loads(
        "wrong result",
        "images without an ending in a tar",
        lambda f: tar(f / "x.tar", {**WHOLE, "train/cat/9": picture()}),
        "train/cat/9 has no ending that is known: remove it",
    ),
    loads(
        "wrong result",
        "images without an ending in a zip, in a folder",
        lambda f: archived(f / "x.zip", {f"out/{name}": b for name, b in {**WHOLE, "train/cat/9": picture()}.items()}),
        "out/train/cat/9 has no ending that is known",
    ),
    roles("test has classes, train has none", {**flat("train"), **images("test")}, "train/0.png is in no class folder"),
    roles("a class that train has not", {**WHOLE, "test/dog/0.png": picture()}, "test has the class dog, which train"),
    roles("one class", {f"train/bee/{i}.png": picture(i) for i in range(5)}, "one class, bee"),
    roles("an image beside the classes", {**images(""), "x.png": picture()}, "x.png is in no class folder"),
    loads(
        "wrong result", "an empty class", made(WHOLE, lambda f: (f / "train/dog").mkdir()), "train/dog holds no images"
    ),
    loads(
        "wrong result", "an empty class at the top", made(MANY, lambda f: (f / "train/dog").mkdir()), "train/dog holds"
    ),
    loads(
        "wrong result",
        "an empty val",
        made(WHOLE, lambda f: (f / "val/cat").mkdir(parents=True)),
        "val holds no images",
    ),
    roles("val without images", {**WHOLE, "val/cat/notes.txt": b"x"}, "val holds no images"),
    roles("a class of notes", {**WHOLE, "train/dog/notes.txt": b"x"}, "train/dog holds no images"),
    loads("wrong result", "a zip member hidden by a length", lambda f: shortened(f / "x.zip"), "corrupt or cut short"),
    loads("wrong result", "a zip member of another name", lambda f: renamed(f / "x.zip"), "corrupt or cut short"),
    roles("images of a format that is not read", {**WHOLE, "train/dog/1.heic": b"x"}, "train/dog/1.heic .* convert"),
    roles("half a class is not read", {**WHOLE, "train/cat/9.JFIF": picture()}, "train/cat/9.JFIF .* convert"),
    loads(
        "wrong result",
        "an archive of only test",
        lambda f: tar(f / "x.tar.gz", images("x/test"), "w:gz"),
        NO_TRAIN,
    ),
    roles("posts: only the test half", posts("20news-bydate-test"), NO_TRAIN, "newsgroups"),
    roles("posts: only test, in a folder", posts("news/20news-bydate-test"), NO_TRAIN, "newsgroups"),
    roles("posts: only the train half", posts("20news-bydate-train"), "no test folder", "newsgroups"),
    roles(
        "posts: a group that train has not",
        posts("a-train", "a-test") | posts("a-test/x"),
        "rec.autos/100 stands beside train",
        "newsgroups",
    ),
    roles(
        "posts: another group in test",
        posts("a-train", "a-test") | {"a-test/talk/1": HEADER + b"word"},
        "test has the class talk",
        "newsgroups",
    ),
    roles(
        "tiny: two folders train",
        TINY | {f"b/{n}": d for n, d in TINY.items() if "n01" in n},
        "copies, in",
        "tiny_imagenet",
    ),
    roles("tiny: two copies", {f"{c}/{n}": d for c in "ab" for n, d in TINY.items()}, "two copies", "tiny_imagenet"),
    roles(
        "tiny: an image elsewhere",
        {**TINY, "val/n01/x.JPEG": picture()},
        "n01/x.JPEG: no images in",
        "tiny_imagenet",
    ),
    roles(
        "tiny: two classes of one image",
        {**TINY, "val/val_annotations.txt": TINY["val/val_annotations.txt"] + b"val_0.JPEG\tn02\t0\n"},
        "val_0.JPEG twice",
        "tiny_imagenet",
    ),
    roles(
        "tiny: an image of val is missing",
        {n: d for n, d in TINY.items() if not n.endswith("val_1.JPEG")},
        "val_1.JPEG, which is not there",
        "tiny_imagenet",
    ),
    roles(
        "tiny: no list of classes",
        {n: d for n, d in TINY.items() if "annotations" not in n},
        "val_0.JPEG has no class",
        "tiny_imagenet",
    ),
    roles("trees: half of the labels", {**TREES, "dev.txt": b"(3 (2 It) works)"}, "dev.txt, line 1", "sst"),
    roles("trees: labels out of range", {**TREES, "dev.txt": b"(3 (2 It) (7 a))"}, "'7' is no sentiment", "sst"),
    roles("an animated GIF", {**WHOLE, "train/cat/9.gif": animation("GIF")}, "9.gif holds 2 images"),
    roles("a TIFF of two pages", {**WHOLE, "train/cat/9.tif": animation("TIFF")}, "9.tif holds 2 images"),
    roles("an animated PNG", {**WHOLE, "train/cat/9.png": animation("PNG")}, "9.png holds 2 images"),
    Call("wrong result", "vectors: other widths further down", vectors(b"bee 1 2\ncat 1 2 3 4\n"), "line 2: 4 numbers"),
    Call("wrong result", "vectors: a narrower line", vectors(b"bee 1 2\ncat 1\n"), "line 2: 1 numbers where 2"),
    Call("wrong result", "vectors: nan", vectors(b"bee 1 nan\n"), "line 1: a value is not finite"),
]
HOSTILE_FILES = [
    loads(
        "no end", "a pipe among the images", made(WHOLE, lambda f: os.mkfifo(f / "train/bee/9.png")), "9.png is a pipe"
    ),
    loads("no end", "a pipe among other files", made(WHOLE, lambda f: os.mkfifo(f / "readme")), "readme is a pipe"),
    loads("traceback", "a socket", made(WHOLE, lambda f: socket_at(f / "train/bee/9.png")), "9.png is a socket"),
    loads("no end", "a pipe for an archive", lambda f: os.mkfifo(f / "x.tar") or f / "x.tar", "x.tar is a pipe"),
    loads("no end", "a device for an archive", lambda f: "/dev/zero", "/dev/zero is a device"),
    loads("no end", "links in a circle", made(WHOLE, linked_in_a_circle), "again .*leads back"),
    loads("no end", "links to each other", made(WHOLE, linked_to_each_other), "other.*leads back"),
    loads("no end", "links that double and double", made(WHOLE, doubled_by_links), "is reached through more than"),
    loads(
        "unhelpful line",
        "a link to nothing among the images",
        made(WHOLE, lambda f: (f / "train/bee/9.png").symlink_to(f / "gone.png")),
        "9.png is a link to .*gone.png, where nothing is",
    ),
    loads(
        "traceback",
        "a name that is not UTF-8",
        made(WHOLE, lambda f: write(f, {os.fsdecode(b"train/bee/\xff.png"): picture()})),
        r"'train/bee/\\udcff.png'.* rename it",
    ),
    loads(
        "unhelpful line", "a class of two lines", made({**WHOLE, "train/a\nb/1.png": picture()}), r"'train/a\\nb/1.png'"
    ),
    loads(
        "no end", "pixels beyond Pillow's limit", made({**WHOLE, "train/bee/9.png": claimed(10**5, 10**5)}), "pixels"
    ),
    loads(
        "unhelpful line", "pixels near the limit", made({**WHOLE, "train/bee/9.png": claimed(11000, 11000)}), "pixels"
    ),
    loads(
        "hostile file",
        "PostScript as PNG",
        made({**WHOLE, "train/bee/9.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n"}),
        "9.png is not a readable image",
    ),
    loads(
        "no end", "images of 100,000 pixels", made(WHOLE), "set config.data.image_size to at most", image_size=100_000
    ),
    loads(
        "no end",
        "images of 100,000 pixels, from an archive",
        lambda f: tar(f / "x.tar", WHOLE),
        "config.data.image_size",
        image_size=100_000,
    ),
    loads("traceback", "images of 10^12 pixels", made(WHOLE), "config.data.image_size", image_size=10**12),
    loads("traceback", "a member of a terabyte", lambda f: tar(f / "x.tar", WHOLE, size=1 << 40), "times its own size"),
    loads(
        "traceback",
        "a member of a terabyte, compressed",
        lambda f: tar(f / "x.tar.gz", WHOLE, "w:gz", size=1 << 40),
        "GiB",
    ),
    loads("traceback", "a name of a terabyte", lambda f: with_long_name(f / "x.tar.gz"), "corrupt"),
    loads("no end", "zeros in bzip2", lambda f: zeros_in_bzip2(f / "x.tar.bz2"), "times its own size"),
    loads(
        "no end",
        "zeros behind an archive",
        lambda f: with_zeros(f / "x.tar.bz2"),
        "more than 67,108,864 bytes of zeros",
    ),
    loads(
        "traceback",
        "a zip member beyond memory",
        lambda f: oversized(f / "x.zip", WHOLE),
        "times its own size, 4",
    ),
    loads(
        "traceback", "another compression", lambda f: strange_compression(f / "x.zip", WHOLE), "corrupt or cut short"
    ),
    loads("hostile file", "a member above", lambda f: tar(f / "x.tar", {"../train/x.png": b"", **WHOLE}), "leads out"),
    loads("hostile file", "a zip member above", lambda f: archived(f / "x.zip", {"a/../../b.png": b""}), "leads out"),
    loads(
        "hostile file",
        "a device in an archive",
        lambda f: tar(f / "x.tar", WHOLE, type=tarfile.CHRTYPE),
        "is no regular",
    ),
    loads(
        "hostile file",
        "a link in an archive",
        lambda f: tar(f / "x.tar", WHOLE, type=tarfile.SYMTYPE, linkname="/etc/passwd"),
        "is a link",
    ),
    loads("no end", "a tree 3,000 deep", made({**TREES, "train.txt": deep_tree(3000)}), "3001 words", source="sst"),
    loads(
        "no end",
        "3,000 words on one level",
        made({**TREES, "dev.txt": deep_tree(3000)}),
        "dev.txt, line 1",
        source="sst",
    ),
    loads(
        "unhelpful line",
        "a sentiment of a megabyte",
        made({**TREES, "dev.txt": b"(" + b"3" * 10**6 + b" a)"}),
        "^.{0,400}is no sentiment",
        source="sst",
    ),
    Call("no end", "vectors: a line without end", vectors(b"bee " + b"1" * (5 << 20)), "line 1.*longer than"),
    Call("no end", "vectors: a line without end in a zip", vectors(bytes(64 << 20), "v.zip"), "longer than"),
    Call("no end", "vectors: a pipe", vectors_through_a_pipe, "vectors.txt is a pipe: give a file"),
]
STRANGE_NAMES = [
    Call("traceback", "a path too long", lambda: load_dataset("folder:" + "a" * 5000), "too long"),
    Call("traceback", "a name too long", lambda: load_dataset("folder:/tmp/" + "a" * 300), "too long"),
    Call("traceback", "NUL in a path", lambda: load_dataset("folder:/tmp/\0"), r"\\x00"),
    Call("traceback", "a path that is not UTF-8", lambda: load_dataset("folder:/tmp/\udcff"), r"\\udcff"),
    Call("unhelpful line", "a path of two lines", lambda: load_dataset("folder:a\nb"), r"a\\nb"),
    Call("traceback", "no such user", lambda: load_dataset("sst:~no-such-user-at-all/x"), "no-such-user"),
    Call("unhelpful line", "posts: a path too long", lambda: load_dataset("newsgroups:" + "a/" * 3000), "too long"),
    Call("unhelpful line", "no path", lambda: load_dataset("folder:"), "no such folder or archive"),
    loads(
        "unhelpful line",
        "a link to nothing",
        lambda f: (f / "link").symlink_to("gone") or f / "link",
        "is a link to gone, where nothing is",
    ),
    loads(
        "unhelpful line", "a link to itself", lambda f: (f / "link").symlink_to("link") or f / "link", "symbolic link"
    ),
    loads("unhelpful line", "below a file", lambda f: write(f, {"x": b""}) / "x/y", "no such folder or archive"),
    Call("traceback", "a number for a name", lambda: load_dataset(5), "name is 5"),
    Call("traceback", "a fraction for a size", lambda: load_dataset("digits", val_size=1.5), "val_size is 1.5"),
    Call("traceback", "text for a size", lambda: load_dataset("digits", train_size="9"), "train_size is '9'"),
    Call("wrong result", "True for a size", lambda: load_dataset("digits", test_size=True), "test_size is True"),
    Call(
        "traceback", "a size of 400 digits", lambda: load_dataset("digits", train_size=10**400), "train_size is out of"
    ),
    Call("traceback", "NaN for a seed", lambda: load_dataset("digits", split_seed=float("nan")), "split_seed is nan"),
    Call(
        "traceback",
        "a seed too large",
        lambda: load_dataset("digits", split_seed=2**40),
        "split seed 1.* is out of",
    ),
    Call(
        "traceback",
        "clusters beyond memory",
        lambda: load_dataset("clusters:1", train_size=4 * 10**13),
        "more than memory",
    ),
    Call(
        "unhelpful line",
        "clusters beyond float32",
        lambda: load_dataset("clusters:1e39"),
        "at most 1,000,000",
    ),
    Call(
        "unhelpful line",
        "clusters without number",
        lambda: load_dataset("clusters:wide"),
        "give the standard deviation",
    ),
]
SIZES = [
    loads("unhelpful line", "two images", made({"a/1.png": picture(1), "b/1.png": picture(2)}), "has 2 .*at least 3"),
    loads(
        "unhelpful line",
        "two images and test",
        made(images("train", "test", each=1)),
        "train, which has 2 examples, and 2 were asked for.*val_size to at most 1",
        val_size=2,
    ),
    Call("unhelpful line", "all for test", lambda: load_dataset("digits", test_size=1797), "test_size to at most 1437"),
    Call("unhelpful line", "all but one for test", lambda: load_dataset("digits", test_size=1796), "at most 1437"),
    Call("unhelpful line", "all for val", lambda: load_dataset("digits", val_size=1797), "val_size to at most 1437"),
    Call(
        "unhelpful line",
        "too much in all",
        lambda: load_dataset("digits", train_size=900, val_size=900),
        "train_size to at most 538",
    ),
    Call("unhelpful line", "more than there are", lambda: load_dataset("digits", train_size=5000), "at most 1079"),
    Call("unhelpful line", "size 0", lambda: load_dataset("digits", val_size=0), "give at least 1"),
]
COMMANDS = [
    Case("wrong result", "run on only test", running(in_folder(images("test"))), NO_TRAIN),
    Case(
        "unhelpful line",
        "run on two images",
        running(in_folder({"a/1.png": picture(1), "b/1.png": picture(2)})),
        "at least 3",
    ),
    Case(
        "no end",
        "run on a pipe among the images",
        running(in_folder(WHOLE, lambda folder: os.mkfifo(folder / "train/cat/9.png"))),
        "9.png is a pipe",
    ),
    Case(
        "unhelpful line",
        "run on a link to nothing",
        running(in_folder(WHOLE, lambda folder: (folder / "test/cat/9.png").symlink_to("gone"))),
        "9.png is a link to gone, where nothing is: mend",
    ),
    Case("traceback", "run on a path too long", running(lambda folder: "folder:" + "a" * 300), "too long"),
    Case("unhelpful line", "run on nothing", running(lambda folder: "folder:nowhere"), "no such folder or archive"),
    Case(
        "no end",
        "run on 100,000 x 100,000 pixels",
        running(in_folder(images("train", "test", each=30)), "--config.data.image_size=100000"),
        "config.data.image_size",
    ),
    Case(
        "wrong result",
        "run on posts of only the test half",
        running(lambda folder: f"newsgroups:{made(posts('20news-bydate-test'))(folder / 'posts').name}"),
        NO_TRAIN,
    ),
]
CASES = [*GUESSED_ROLES, *HOSTILE_FILES, *STRANGE_NAMES, *SIZES, *COMMANDS]
