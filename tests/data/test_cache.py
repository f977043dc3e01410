"""The cache of decoded images: used when whole, rebuilt when damaged, never trusted."""

import errno
import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest

import focalgeo.data.cache as cache
import focalgeo.data.folders as folders
from focalgeo.data import load_dataset
from focalgeo.data.cache import cache_directory, cached_dataset
from focalgeo.data.splits import RawDataset
from focalgeo.types import InputError, Split


def make_raw():
    rng = np.random.default_rng(0)
    split = Split(rng.integers(0, 256, (12, 3, 2, 3), dtype=np.uint8), rng.integers(0, 2, 12).astype(np.int32))
    return RawDataset({"train": split, "test": Split(split.x[:4], split.y[:4])}, ("a", "ß"), "abc")


def assert_same(left, right):
    assert left[1:] == right[1:]
    assert left.splits.keys() == right.splits.keys()
    for part in left.splits:
        for one, other in zip(left.splits[part], right.splits[part], strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype


def visible(path):
    """Names in a folder, but for the lock file."""
    return [each.name for each in path.iterdir() if not (each.name.startswith(".") and each.suffix == ".lock")]


def never():
    raise AssertionError("decoded again")


def test_second_load_decodes_nothing(folder, monkeypatch, private_cache):
    first = load_dataset(f"folder:{folder}")
    monkeypatch.setattr(folders, "decode_files", never)
    second = load_dataset(f"folder:{folder}")
    np.testing.assert_array_equal(first.train.x, second.train.x)
    (name,) = visible(private_cache)
    assert name.endswith(".npz")
    (lock,) = set(private_cache.iterdir()) - {private_cache / name}
    assert lock.name == f".{name}.lock"
    assert lock.read_bytes() == b""


def test_changed_content_is_decoded_anew(folder):
    first = load_dataset(f"folder:{folder}")
    shutil.copy(folder / "train/cat/00.png", folder / "train/cat/01.png")
    assert (load_dataset(f"folder:{folder}").train.x != first.train.x).any()


def test_no_single_changed_byte_is_trusted(tmp_path):
    source = make_raw()
    cached_dataset("key", lambda: source, cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    whole = path.read_bytes()
    rebuilt = []
    rng = np.random.default_rng(1)
    for position in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << rng.integers(8)
        path.write_bytes(damaged)
        got = cached_dataset("key", lambda: rebuilt.append(1) or source, cache_dir=tmp_path)
        assert_same(got, source)
    assert len(rebuilt) > 0.5 * len(whole) / 3


def test_header_that_claims_fewer_rows_is_not_trusted(tmp_path):
    source = make_raw()
    cached_dataset("key", lambda: source, cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    whole = path.read_bytes()
    assert whole.count(b"(12, 3, 2, 3)") == 1
    path.write_bytes(whole.replace(b"(12, 3, 2, 3)", b"(11, 3, 2, 3)"))
    assert_same(cached_dataset("key", lambda: source, cache_dir=tmp_path), source)
    assert path.read_bytes() == whole or zipfile.ZipFile(path).testzip() is None


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.99])
def test_truncated_cache_is_rebuilt(tmp_path, share):
    source = make_raw()
    cached_dataset("key", lambda: source, cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert_same(cached_dataset("key", lambda: source, cache_dir=tmp_path), source)
    assert_same(cached_dataset("key", never, cache_dir=tmp_path), source)


def test_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(AssertionError):
        cached_dataset("key", never, cache_dir=tmp_path)
    assert visible(tmp_path) == []


def test_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def fail(file, **arrays):
        file.write(b"part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(InputError, match=r"No space left.*XDG_CACHE_HOME"):
        cached_dataset("key", make_raw, cache_dir=tmp_path)
    assert visible(tmp_path) == []


def test_cache_dir_that_cannot_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="name another folder in XDG_CACHE_HOME"):
        cached_dataset("key", make_raw, cache_dir=tmp_path / "file" / "below")


def test_where_the_cache_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory(None) == tmp_path / ".cache" / "focalgeo"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_directory(None) == tmp_path / "x" / "focalgeo"
    assert cache_directory("~/y") == tmp_path / "y"


def test_two_processes_at_once(folder, tmp_path):
    program = (
        "import hashlib, sys; from focalgeo.data import load_dataset\n"
        "data = load_dataset('folder:' + sys.argv[1], cache_dir=sys.argv[2])\n"
        "print(hashlib.sha256(b''.join(a.tobytes() for s in (data.train, data.val, data.test) for a in s)).hexdigest())"
    )
    command = [sys.executable, "-c", program, str(folder), str(tmp_path / "shared")]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate()[0] for process in running]
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 65
    assert len(visible(tmp_path / "shared")) == 1


BUILD = """
import hashlib, os, signal, sys, time
from pathlib import Path
import numpy as np
from focalgeo.data.cache import cached_dataset
from focalgeo.data.splits import RawDataset
from focalgeo.types import Split

signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job starts with it ignored
folder, seconds = Path(sys.argv[1]), float(sys.argv[2])

def build():
    (folder / f"built-{os.getpid()}").touch()
    time.sleep(seconds)
    split = Split(np.zeros((4, 2, 2, 3), np.uint8), np.arange(4, dtype=np.int32) % 2)
    return RawDataset({"train": split}, ("a", "b"), "abc")

(folder / f"started-{os.getpid()}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
raw = cached_dataset("key", build, cache_dir=folder / "cache", tell=lambda line: print(line, flush=True))
print(hashlib.sha256(b"".join(array.tobytes() for array in raw.splits["train"])).hexdigest())
"""


@pytest.fixture
def start(tmp_path):
    """Starts a process that needs the data set and takes so many seconds to build it; none is left running."""
    running = []

    def begin(seconds):
        command = [sys.executable, "-c", BUILD, str(tmp_path), str(seconds)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.communicate()


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def started(folder, count, what="started"):
    wait_until(lambda: len(list(folder.glob(f"{what}-*"))) == count)


def test_processes_that_start_at_once_build_once(start, tmp_path):
    running = [start(0.5) for _ in range(4)]
    started(tmp_path, 4)
    (tmp_path / "go").touch()
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert len(list(tmp_path.glob("built-*"))) == 1
    assert len({output.splitlines()[-1] for output in outputs}) == 1
    assert visible(tmp_path / "cache") == [f"key-v{cache.FORMAT}.npz"]


def test_waiting_is_said_once_and_a_killed_process_lets_go(start, tmp_path):
    (tmp_path / "go").touch()
    first = start(600)
    started(tmp_path, 1, "built")
    second = start(0)
    line = second.stdout.readline()
    assert line == f"another process is making {tmp_path}/cache/key-v{cache.FORMAT}.npz: waiting for it\n"
    assert second.poll() is None
    first.kill()
    out, err = second.communicate(timeout=30)
    assert (second.returncode, err) == (0, "")
    assert len(out.splitlines()) == 1  # the checksum: the line above came once
    assert len(list(tmp_path.glob("built-*"))) == 2


def test_waiting_heeds_ctrl_c(start, tmp_path):
    (tmp_path / "go").touch()
    start(600)
    started(tmp_path, 1, "built")
    second = start(0)
    second.stdout.readline()
    second.send_signal(signal.SIGINT)
    _, err = second.communicate(timeout=10)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert len(list(tmp_path.glob("built-*"))) == 1


def hold(folder):
    """Hold the lock of "key", as another process would; returns what lets go."""
    descriptor = os.open(folder / f".key-v{cache.FORMAT}.npz.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return lambda: os.close(descriptor)


def test_who_finds_the_data_stored_does_not_wait(tmp_path):
    filled(tmp_path)
    let_go = hold(tmp_path)
    assert_same(cached_dataset("key", never, cache_dir=tmp_path), make_raw())
    let_go()


def test_who_has_waited_reads_what_the_other_stored(tmp_path):
    stored = filled(tmp_path)
    aside = stored.rename(tmp_path / "aside")
    let_go = hold(tmp_path)
    got = []
    waiting = threading.Thread(target=lambda: got.append(cached_dataset("key", never, cache_dir=tmp_path)))
    waiting.start()
    time.sleep(3 * cache.POLL)
    assert got == []
    aside.rename(stored)
    let_go()
    waiting.join(30)
    assert_same(got[0], make_raw())


@pytest.mark.parametrize("reason", [errno.ENOTSUP, errno.ENOLCK, errno.ENOSYS])
def test_where_the_file_system_has_no_locks_each_builds(tmp_path, monkeypatch, reason):
    def fail(descriptor, flags):
        raise OSError(reason, os.strerror(reason))

    monkeypatch.setattr(fcntl, "flock", fail)
    assert_same(cached_dataset("key", make_raw, cache_dir=tmp_path), make_raw())
    assert_same(cached_dataset("key", never, cache_dir=tmp_path), make_raw())


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_lock_that_is_no_file_is_not_taken(tmp_path, kind):
    lock, other = tmp_path / f".key-v{cache.FORMAT}.npz.lock", tmp_path / "other"
    {"link": lambda: lock.symlink_to(other), "pipe": lambda: os.mkfifo(lock), "folder": lock.mkdir}[kind]()
    assert_same(cached_dataset("key", make_raw, cache_dir=tmp_path), make_raw())
    assert not other.exists()


def test_what_a_killed_process_left_half_written_is_removed(tmp_path):
    whose = f".key-v{cache.FORMAT}.npz", f".other-v{cache.FORMAT}.npz"
    names = [f"{name}.1-0123456789abcdef.tmp" for name in whose]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    cached_dataset("key", make_raw, cache_dir=tmp_path)
    assert sorted(visible(tmp_path)) == sorted([names[1], f"key-v{cache.FORMAT}.npz"])  # the other may be running


def filled(tmp_path, raw=None):
    """A cache of one data set, and its file."""
    cached_dataset("key", lambda: raw or make_raw(), cache_dir=tmp_path)
    (path,) = tmp_path.glob("*.npz")
    return path


def replaced(arrays, **changes):
    return {name: array for name, array in (arrays | changes).items() if array is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {"train_x": None, "train_y": None},
        {"other_x": np.zeros((1, 2, 2, 3), np.uint8), "other_y": np.zeros(1, np.int32)},
        {"train_x": np.zeros((12, 3, 2, 3), np.float32)},
        {"train_x": np.zeros((12, 18), np.uint8)},
        {"train_y": np.zeros(11, np.int32)},
        {"train_y": np.zeros(12)},
        {"train_y": None},
        {"class_names": np.array(["a", object()], object)},
        {"class_names": None},
    ],
)
def test_a_whole_file_of_something_else_is_not_trusted(tmp_path, changes):
    path = filled(tmp_path)
    with np.load(path) as arrays:
        arrays = dict(arrays)
    np.savez(path, **replaced(arrays, **changes))
    assert_same(cached_dataset("key", make_raw, cache_dir=tmp_path), make_raw())
    assert_same(cached_dataset("key", never, cache_dir=tmp_path), make_raw())


def test_nothing_is_unpickled(tmp_path):
    path = filled(tmp_path)

    class Harm:
        def __reduce__(self):
            return open, (str(tmp_path / "harmed"), "w")

    with np.load(path) as arrays:
        np.savez(path, **{**arrays, "class_names": np.array([Harm(), Harm()], object)})
    assert_same(cached_dataset("key", make_raw, cache_dir=tmp_path), make_raw())
    assert not (tmp_path / "harmed").exists()


def test_a_link_is_neither_read_nor_written_through(tmp_path):
    path = filled(tmp_path / "cache")
    other = path.rename(tmp_path / "other.npz")
    whole = other.read_bytes()
    path.symlink_to(other)
    changed = make_raw()._replace(class_names=("c", "d"))
    assert_same(cached_dataset("key", lambda: changed, cache_dir=tmp_path / "cache"), changed)
    assert other.read_bytes() == whole
    assert not path.is_symlink()


def test_a_pipe_does_not_block_and_a_folder_is_named(tmp_path):
    path = filled(tmp_path)
    path.unlink()
    os.mkfifo(path)
    assert_same(cached_dataset("key", make_raw, cache_dir=tmp_path), make_raw())
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match="cannot be kept"):
        cached_dataset("key", make_raw, cache_dir=tmp_path)


def test_a_file_of_another_user_is_decoded_again(tmp_path, monkeypatch):
    filled(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(os, "fstat", lambda number: SimpleNamespace(st_mode=stat.S_IFREG, st_uid=12345, st_size=10**9))
    calls = []
    cached_dataset("key", lambda: calls.append(1) or make_raw(), cache_dir=tmp_path)
    assert calls


@pytest.mark.parametrize("declared", ["compressed", "larger"])
def test_what_unpacks_to_more_than_the_file_is_not_read(tmp_path, declared):
    path = filled(tmp_path)
    if declared == "compressed":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("train_x.npy", bytes(10**6))
    else:
        data = bytearray(path.read_bytes())
        at = data.index(b"PK\x01\x02") + 24
        data[at : at + 4] = b"\xfe\xff\xff\xff"
        path.write_bytes(data)
    assert_same(cached_dataset("key", make_raw, cache_dir=tmp_path), make_raw())
