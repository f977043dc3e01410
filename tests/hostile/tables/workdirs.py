"""Workdirs of somebody else, damaged ones, links and names: each a copy of one finished run with something changed."""

import atexit
import functools
import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from hostile.cases import ROOT, Case

FLAGS = (
    f"--config={ROOT / 'configs' / 'digits.py'}:quick",
    "--config.optimizer.epochs=1",
    "--config.optimizer.decay_epochs=()",
    "--config.curvature.examples=0",
    "--config.evaluation.num_resamples=2",
    "--config.evaluation.temperature_step=0.5",
    "--config.checkpoint.every=9",
)
ELSEWHERE = "choose another --workdir"


@functools.cache
def finished() -> Path:
    """A small finished run, made once in each process."""
    from focalgeo import job
    from focalgeo.config import load_config, parse_arguments, with_values

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    values, _ = parse_arguments(FLAGS[1:], {})
    job.run(with_values(load_config(FLAGS[0].removeprefix("--config=")), values), folder / "w")
    return folder / "w"


def run_in(workdir, *more):
    return ["run", *FLAGS, f"--workdir={workdir}", *more]


def changed(change, command="run"):
    """The case's make: a copy of the finished run, changed by change(workdir)."""

    def make(folder):
        shutil.copytree(finished(), folder / "w", symlinks=True)
        change(folder / "w")
        return run_in("w") if command == "run" else ["report", "w"]

    return make


def manifest(**parts):
    """A change of the manifest: the values of fields by their dotted names, with __ for the dot."""

    def change(workdir):
        found = json.loads((workdir / "manifest.json").read_text())
        for name, value in parts.items():
            *path, last = name.split("__")
            functools.reduce(dict.__getitem__, path, found)[last] = value
        (workdir / "manifest.json").write_text(json.dumps(found))

    return change


def text(file, content):
    """A change of a whole file."""

    def change(workdir):
        data = content if isinstance(content, bytes) else content.encode()
        (workdir / file).write_bytes(data)

    return change


def row(**fields):
    """A change: one more row, a metric that is right but for these fields."""
    line = {"kind": "metric", "name": "ece", "value": 0.1, "n": 10, "split": "test", "method": "uncalibrated", **fields}
    return line_of(json.dumps(line))


def line_of(line):
    """A change: one more line of metrics.jsonl."""

    def change(workdir):
        with open(workdir / "metrics.jsonl", "ab") as file:
            file.write((line if isinstance(line, bytes) else line.encode()) + b"\n")

    return change


def gone(*names):
    """A change: files or folders that are removed."""

    def change(workdir):
        for name in names:
            path = workdir / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def cut(name, keep=100):
    """A change: a file of which the beginning is left."""
    return lambda workdir: (workdir / name).write_bytes((workdir / name).read_bytes()[:keep])


def predictions(split, logits, labels):
    return lambda workdir: np.savez(workdir / f"predictions/{split}.npz", logits=logits, labels=labels)


def linked(name, target="elsewhere"):
    """A change: a link in place of a file or folder, whose content stands outside the workdir."""

    def change(workdir):
        path, outside = workdir / name, workdir.parent / target
        if path.exists() and target == "elsewhere":
            path.rename(outside)
        path.symlink_to(outside)

    return change


def victim(name):
    """A change: a link of this name in the workdir, which leads to a file of the user's."""

    def change(workdir):
        (workdir.parent / "victim").write_text("mine")
        (workdir / name).unlink(missing_ok=True)
        (workdir / name).symlink_to("../victim")

    return change


def both(*changes):
    return lambda workdir: [change(workdir) for change in changes]


def victim_is_whole(folder):
    assert (folder / "victim").read_text() == "mine"


def is_whole(folder):
    """The copy holds what the finished run holds: predictions to the bit, the same rows, and the page."""
    from focalgeo import records

    for split in ("val", "test"):
        for mine, other in zip(
            *(records.read_predictions(each, split) for each in (folder / "w", finished())), strict=True
        ):
            np.testing.assert_array_equal(mine, other)
    rows = [
        sorted(str(each) for each in records.read_rows(path) if each.name != "seconds" and each.epoch is None)
        for path in (folder / "w", finished())
    ]
    assert rows[0] == rows[1]
    assert (folder / "w" / "report.html").exists()
    assert (folder / "w" / "search.npz").exists()


def given(*arguments):
    return lambda folder: arguments


def beside(prepare, workdir="w", command="run"):
    """The case's make: prepare(folder), then a new run in a workdir there."""

    def make(folder):
        prepare(folder)
        return run_in(workdir) if command == "run" else ["report", workdir]

    return make


def two_rates(folder):
    return run_in("w", "--config.sweep.learning_rate=(1e29,1e30)")


DEEP = "[" * 100_000 + "]" * 100_000
MANIFESTS = {
    "a list": (text("manifest.json", "[]"), "it is not an object"),
    "null": (text("manifest.json", "null"), "it is not an object"),
    "a number": (text("manifest.json", "3"), "it is not an object"),
    "nothing": (text("manifest.json", ""), "is corrupt"),
    "cut": (cut("manifest.json"), "is corrupt"),
    "too deep": (text("manifest.json", DEEP), "is corrupt"),
    "deep objects": (text("manifest.json", '{"config": ' + '{"a": ' * 300 + "1" + "}" * 301), "nested too deep"),
    "no UTF-8": (text("manifest.json", b'{"config": {"seed": "\xff"}}'), "is corrupt"),
    "not finite": (text("manifest.json", '{"config": {"seed": NaN}}'), "is corrupt"),
    "beyond float": (text("manifest.json", '{"config": {"seed": 1e999}}'), "is corrupt"),
    "a number of many digits": (text("manifest.json", '{"config": {"seed": 1' + "0" * 5000 + "}}"), "is corrupt"),
    "config is text": (manifest(config="focal"), "config is not an object"),
    "config is null": (manifest(config=None), "config is not an object"),
    "data is null": (manifest(data=None), "data is not an object"),
    "checksum is a number": (manifest(data__checksum=3), "data.checksum is not a text"),
    "methods are a list": (manifest(methods=["ece"]), "methods is not an object"),
    "a method is text": (manifest(methods__uncalibrated="x"), "methods.uncalibrated is not an object"),
    "metrics are null": (manifest(metrics=None), "metrics is not an object"),
    "digits are text": (manifest(metrics__ece__digits="4"), "metrics.ece.digits is not a whole number"),
    "shard is a number": (manifest(shard=3), "shard is not a text"),
    "the sweep is text": (manifest(config__sweep="gamma"), "config.sweep is not an object"),
    "an axis is text": (manifest(config__sweep__gamma="0,3"), "config.sweep.gamma is not a list"),
    "an axis holds null": (manifest(config__sweep__gamma=[None]), "each of config.sweep.gamma is not a number"),
    "gamma is text": (manifest(config__loss__gamma="3"), "config.loss.gamma is not a number"),
    "versions are a list": (manifest(versions=[]), "versions is not an object"),
}
ROWS = {
    "value is text": (row(value="low"), "has value 'low', which is no finite number"),
    "value is true": (row(value=True), "has value True, which is no finite number"),
    "value is null": (row(value=None), "has no value"),
    "value is a list": (row(value=[1]), "has value a list, which is no finite number"),
    "value beyond float": (row(value=10**400), "a number of hundreds of digits, which is no finite number"),
    "step is broken": (row(step=1.5), "has step 1.5, which is no whole number from 0 to "),
    "n is negative": (row(n=-5), "has n -5, which is no whole number from 0 to "),
    "kind is unknown": (row(kind="x" * 9999), "a row's kind is 'xxx"),
    "kind is a list": (row(kind=["metric"]), "a row's kind is"),
    "name is a number": (row(name=3), "has name 3, which is no text"),
    "a list": (line_of("[1, 2]"), "is corrupt at line"),
    "NaN": (line_of('{"kind": "metric", "name": "ece", "value": NaN}'), "is corrupt at line"),
    "infinite": (line_of('{"kind": "metric", "name": "ece", "value": 1e999}'), "has value inf"),
    "too deep": (line_of(DEEP), "is corrupt at line"),
    "no UTF-8": (line_of(b'{"kind": "metric", "name": "\xff", "value": 1}'), "is corrupt at line"),
}
EXTENSIONS = {
    "an object": ("{}", "extensions.json is corrupt"),
    "numbers": ("[1]", "extensions.json is corrupt"),
    "too deep": (DEEP, "extensions.json is corrupt"),
    "nobody": ('[{"members": [], "at_once": 1}]', "extensions.json is corrupt"),
    "text at once": ('[{"members": [""], "at_once": "1"}]', "extensions.json is corrupt"),
    "none at once": ('[{"members": [""], "at_once": 0}]', "extensions.json is corrupt"),
    "strangers": ('[{"members": ["gamma=7"], "at_once": 1}]', "names members of another sweep"),
}
LOST = {
    "val's predictions are gone": (
        gone("predictions/val.npz"),
        "val.npz is missing or corrupt; it is measured again",
    ),
    "test's predictions are cut": (cut("predictions/test.npz"), "test.npz is missing or corrupt; it is measured"),
    "predictions of other examples": (
        predictions("val", np.zeros((3, 10), np.float32), np.zeros(3, np.int32)),
        "predictions/val.npz is missing or corrupt",
    ),
    "the search is cut": (cut("search.npz"), "search.npz is missing or corrupt; it is measured again"),
    "the page is gone": (gone("report.html", "figures"), "is complete: drawing the report anew"),
    "the checkpoints are gone": (gone("checkpoints"), "holds no checkpoint any more: the results are whole"),
    "all rows are gone": (gone("metrics.jsonl"), "lacks rows of training"),
    "rows are gone and a checkpoint is damaged": (
        both(gone("metrics.jsonl"), cut("checkpoints/17/state/manifest.ocdbt", 9)),
        "17 is corrupt or incomplete; falling back to the one before",
    ),
}


def lock_as_folder(workdir):
    (workdir / ".lock").unlink()
    (workdir / ".lock").mkdir()


def without_metrics(workdir):
    """The rows of the evaluation are gone, but for its last."""
    lines = (workdir / "metrics.jsonl").read_text().splitlines(keepends=True)
    (workdir / "metrics.jsonl").write_text("".join(line for line in lines if '"metric"' not in line))


CASES = [
    *[Case("traceback", f"manifest: {n}, run", changed(c), s) for n, (c, s) in MANIFESTS.items()],
    *[
        Case("traceback", f"manifest: {n}, report", changed(c, "report"), s)
        for n, (c, s) in MANIFESTS.items()
        if s in ("is corrupt", "it is not an object")
    ],
    *[Case("traceback", f"row: {n}, report", changed(c, "report"), s) for n, (c, s) in ROWS.items()],
    *[
        Case("traceback", f"extensions: {n}", changed(both(gone("metrics.jsonl"), text("extensions.json", c))), s)
        for n, (c, s) in EXTENSIONS.items()
    ],
    *[Case("wrong result", f"finished, then {n}", changed(c), s, 0, check=is_whole) for n, (c, s) in LOST.items()],
    Case(
        "wrong result",
        "finished, then metrics are gone",
        changed(without_metrics),
        "rows of the evaluation are gone from metrics.jsonl; it is measured again",
        0,
        check=is_whole,
    ),
    Case(
        "wrong result",
        "all members diverge",
        two_rates,
        "every member stopped and has no results .learning_rate=1e.29 at step 1; learning_rate=1e.30 at step 1.; lower",
        3,
        seconds=40,
        check=lambda folder: (folder / "w" / "report.html").stat(),
        progress=True,
    ),
    Case("hostile file", "the lock is a link", changed(victim(".lock")), "lock is a link", check=victim_is_whole),
    Case(
        "hostile file",
        "the lock is a folder",
        changed(lambda w: ((w / ".lock").unlink(), (w / ".lock").mkdir())),
        r"\.lock: .*a folder stands",
    ),
    Case(
        "hostile file",
        "the page is a link",
        changed(victim("report.html"), "report"),
        "report.html",
        0,
        check=victim_is_whole,
    ),
    Case(
        "hostile file",
        "rows are appended through a link",
        changed(both(gone("metrics.jsonl", "checkpoints"), lambda w: (w / "metrics.jsonl").symlink_to("../new"))),
        "metrics.jsonl is a link, and nothing is written through links",
    ),
    *[
        Case(
            "hostile file",
            f"{name} is a link",
            changed(linked(name)),
            f"{name} is a link, and nothing is written through",
        )
        for name in ("checkpoints", "predictions", "figures", "tensorboard")
    ],
    Case("hostile file", "members is a dangling link", changed(linked("members", "nowhere")), "members is a link, and"),
    Case(
        "no end",
        "rows are a pipe",
        changed(both(gone("metrics.jsonl"), lambda w: os.mkfifo(w / "metrics.jsonl")), "report"),
        "metrics.jsonl is a pipe: give a file, or choose",
    ),
    Case(
        "no end",
        "the manifest is a device",
        changed(both(gone("manifest.json"), lambda w: (w / "manifest.json").symlink_to("/dev/zero"))),
        "manifest.json is a device: give a file, or choose",
    ),
    Case("unhelpful line", "the root", given(*run_in("/")), f"/ is not a focalgeo workdir: .*; {ELSEWHERE}$"),
    Case(
        "unhelpful line",
        "a stranger's folder",
        beside(lambda f: ((f / "w").mkdir(), (f / "w" / "thesis.tex").write_text("mine"))),
        f"has no manifest.json; {ELSEWHERE}$",
    ),
    Case(
        "unhelpful line",
        "a stranger's manifest",
        beside(lambda f: ((f / "w").mkdir(), (f / "w" / "manifest.json").write_text('{"manifest_version": 3}'))),
        f"its manifest.json holds no config; {ELSEWHERE}$",
    ),
    Case(
        "unhelpful line",
        "a dangling link",
        beside(lambda f: (f / "w").symlink_to("nowhere")),
        "w is a link to nowhere, where nothing is; make that folder or",
    ),
    Case("unhelpful line", "a link to itself", beside(lambda f: (f / "w").symlink_to("w")), "it is a link"),
    Case("traceback", "below a file", beside(lambda f: (f / "file").write_text(""), "file/w"), "a file stands where"),
    Case(
        "traceback",
        "a name too long",
        given(*run_in("w" * 300)),
        "File name too long; choose a --workdir",
    ),
    Case("traceback", "a path too long", given(*run_in("w/" * 3000)), "File name too long; choose a --workdir"),
    Case(
        "traceback", "a name of bytes", given(*run_in("w\udcff")), "holds control characters or bytes that are no UTF-8"
    ),
    Case("traceback", "a name of two lines", given(*run_in("w\nx")), "holds control characters or bytes that are no"),
    Case("traceback", "report of a name too long", given("report", "w" * 300), "File name too long"),
    Case(
        "wrong result",
        "a workdir that is a link to a folder works",
        changed(lambda w: (w.rename(w.parent / "big"), w.symlink_to("big"))),
        "report: w/report.html",
        0,
    ),
]
