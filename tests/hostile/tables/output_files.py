"""Files of a classifier's outputs, flags, folders and calibrators of the calibrate command: one thing wrong in each."""

import os

import numpy as np
from hostile.cases import Case

N, CLASSES = 60, 3
RNG = np.random.default_rng(0)
LOGITS = RNG.normal(0, 2, (N, CLASSES)).astype(np.float32)
LABELS = np.argmax(LOGITS + RNG.gumbel(size=LOGITS.shape), axis=1)
PROBS = np.exp(LOGITS) / np.exp(LOGITS).sum(1, keepdims=True)


def calibrate(*flags, change=lambda folder: None, **arrays):
    """The command in a folder with a good val.npz, or one of other arrays, after `change`."""

    def make(folder):
        np.savez(folder / "val.npz", **{"logits": LOGITS, "labels": LABELS, **arrays})
        change(folder)
        out = [] if "--out=" in " ".join(flags) else ["--out=out"]
        return ["calibrate", "--val=val.npz", *out, "--num-resamples=100", "--folds=2", *flags]

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


CASES = [
    Case("no file", calibrate("--test=gone.npz"), "there is no file gone.npz"),
    Case("a name with a zero byte", calibrate("--test=a\0.npz"), r"a\\x00.npz"),
    Case("a sparse terabyte", calibrate(change=lambda folder: os.truncate(folder / "val.npz", 1 << 40)), "val.npz"),
    Case("logits taken for probabilities", calibrate("--probs-key=logits"), "if these are logits, say --logits-key"),
    Case("probabilities taken for logits", calibrate(logits=PROBS), "look like probabilities", 0, 120),
    Case("more bins than examples", calibrate("--num-bins=61"), "--num-bins is 61 for 60 examples"),
    Case("an unknown method", calibrate("--methods=vektor_scaling"), "did you mean 'vector_scaling'"),
    Case("--out in /proc", calibrate("--out=/proc/out"), "/proc/out"),
    Case("results damaged", finished("metrics.jsonl", "calibrator.json"), "to use: ", 0, 180),
    Case("a manifest damaged", finished("manifest.json"), "manifest.json"),
]
