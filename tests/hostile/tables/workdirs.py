"""Workdirs of somebody else, damaged ones, and names: each a copy of one finished run with something changed."""

import atexit
import functools
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
DEEP = "[" * 100_000 + "]" * 100_000


@functools.cache
def finished() -> Path:
    """A small finished run, made once in each process."""
    from focalgeo import job, run

    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    config, *_ = run.parse([*FLAGS, f"--workdir={folder / 'w'}"])
    job.run(config, folder / "w")
    return folder / "w"


def run_in(workdir, *more):
    return ["run", *FLAGS, f"--workdir={workdir}", *more]


def changed(*changes, command="run"):
    """The case's make: a copy of the finished run, changed by each change(workdir)."""

    def make(folder):
        shutil.copytree(finished(), folder / "w", symlinks=True)
        for change in changes:
            change(folder / "w")
        return run_in("w") if command == "run" else ["report", "w"]

    return make


def text(file, content):
    """A change of a whole file."""
    return lambda workdir: (workdir / file).write_text(content)


def gone(name):
    """A change: a file or folder that is removed."""
    return lambda workdir: shutil.rmtree(workdir / name) if (workdir / name).is_dir() else (workdir / name).unlink()


def cut(name, keep=100):
    """A change: a file of which the beginning is left."""
    return lambda workdir: (workdir / name).write_bytes((workdir / name).read_bytes()[:keep])


def is_whole(folder):
    """The copy holds what the finished run holds: predictions to the bit, the same final rows, and the page."""
    from focalgeo import records

    final = []
    for workdir in (folder / "w", finished()):
        rows = [row for row in records.read_rows(workdir) if row.name != "seconds" and row.epoch is None]
        final.append((sorted(map(str, rows)), [records.read_predictions(workdir, split) for split in ("val", "test")]))
        assert (workdir / "report.html").exists()
    assert final[0][0] == final[1][0]
    for mine, other in zip(final[0][1], final[1][1], strict=True):
        np.testing.assert_array_equal(mine.logits, other.logits)


def strange(folder):
    (folder / "w").mkdir()
    (folder / "w" / "thesis.tex").write_text("mine")
    return run_in("w")


CASES = [
    Case("manifest: too deep", changed(text("manifest.json", DEEP)), "cannot be read"),
    Case("row: too deep", changed(text("metrics.jsonl", f"{DEEP}\n"), command="report"), "is no row"),
    Case(
        "finished, then rows and the page are gone and a checkpoint is damaged",
        changed(
            gone("metrics.jsonl"), gone("report.html"), gone("figures"), cut("checkpoints/17/state/manifest.ocdbt", 9)
        ),
        "17 is corrupt or incomplete; falling back to the one before",
        0,
        check=is_whole,
    ),
    Case(
        "all members diverge",
        lambda folder: run_in("w", "--config.sweep.learning_rate=(1e29,1e30)"),
        "every member stopped and has no results .learning_rate=1e.29 at step 1; learning_rate=1e.30 at step 1.; lower",
        3,
        seconds=40,
        check=lambda folder: (folder / "w" / "report.html").stat(),
        progress=True,
    ),
    Case("a stranger's folder", strange, "has no manifest.json; choose another"),
    Case("a name too long", lambda folder: run_in("w" * 300), "File name too long"),
    Case("a name of bytes", lambda folder: run_in("w\udcff"), "control characters or no UTF-8"),
    Case(
        "a workdir that is a link to a folder works",
        changed(lambda w: (w.rename(w.parent / "big"), w.symlink_to("big"))),
        "report: w/report.html",
        0,
    ),
]
