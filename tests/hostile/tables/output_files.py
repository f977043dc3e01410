"""Files of a classifier's outputs, flags, folders and calibrators of the calibrate command: one thing wrong in each."""

import json
import os
import tempfile
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
CALIBRATOR = {
    "format": "focalgeo-calibrator",
    "version": 2,
    "method": "focal_temperature_scaling",
    "criterion": "ece",
    "num_classes": 3,
    "parameters": {"gamma": 0.5, "temperature": 1.5},
}


def calibrate(*flags, change=lambda folder: None, **arrays):
    """The command in a folder with a good val.npz, or one of other arrays, after `change`."""

    def make(folder):
        np.savez(folder / "val.npz", **{"logits": LOGITS, "labels": LABELS, **arrays})
        change(folder)
        return ["calibrate", "--val=val.npz", "--out=out", "--num-resamples=100", "--folds=2", *flags]

    return make


def finished(*damaged):
    """The folder of a command that has ended, some of its files damaged, and the same command again."""

    def make(folder):
        from focalgeo.calibrate import main

        command, *flags = calibrate()(folder)
        assert main(flags) == 0
        for name in damaged:
            (folder / "out" / name).write_text("{x\n")
        return [command, *flags]

    return make


def calibrator(content=None, **changed):
    def call():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "calibrator.json")
            path.write_text(content or json.dumps(CALIBRATOR | changed))
            return read_calibrator(path)

    return call


FILE, FLAG = partial(Case, "hostile file"), partial(Case, "unhelpful line")
CASES = [
    FILE("no file", calibrate("--test=gone.npz"), "there is no file gone.npz"),
    FILE("a pipe", calibrate("--test=pipe.npz", change=lambda folder: os.mkfifo(folder / "pipe.npz")), "pipe.npz"),
    FILE("a name with a zero byte", calibrate("--test=a\0.npz"), r"a\\x00.npz"),
    FILE("a sparse terabyte", calibrate(change=lambda folder: os.truncate(folder / "val.npz", 1 << 40)), "val.npz"),
    FILE("objects", calibrate(labels=np.array([None] * N)), "which could run code"),
    FILE("logits taken for probabilities", calibrate("--probs-key=logits"), "if these are logits, say --logits-key"),
    Case("hostile file", "probabilities taken for logits", calibrate(logits=PROBS), "look like probabilities", 0, 120),
    FLAG("more bins than examples", calibrate("--num-bins=61"), "--num-bins is 61 for 60 examples"),
    FLAG("an unknown method", calibrate("--methods=vektor_scaling"), "did you mean 'vector_scaling'"),
    FLAG("--out that is a file", calibrate(change=lambda folder: (folder / "out").touch()), "cannot write out"),
    FLAG("--out in /proc", calibrate("--out=/proc/out"), "/proc/out"),
    Case("wrong result", "results damaged", finished("metrics.jsonl", "calibrator.json"), "to use: ", 0, 180),
    FILE("a manifest damaged", finished("manifest.json"), "manifest.json"),
    Call("hostile file", "calibrator nested deep", calibrator("[" * 10**5), "as a calibrator"),
    Call("hostile file", "calibrator with NaN", calibrator(parameters={"gamma": np.nan}), "as a calibrator"),
    Call(
        "hostile file",
        "calibrator out of range",
        calibrator(parameters={"gamma": 1, "temperature": -1}),
        "temperature is -1",
    ),
    Call("hostile file", "calibrator of 10^12 classes", calibrator(num_classes=10**12), "num_classes"),
]
