"""Data sets as the run command reads them: one case a class of fault; tests/data has the library's."""

import numpy as np
from data.conftest import encoded, write_archive
from hostile.cases import ROOT, Case

TREES = {
    "train.txt": b"(3 (2 It) (4 works))\n(1 (2 so) (0 bad))\n(0 Bad)\n",
    "dev.txt": b"(4 (2 it) (3 shines))\n(1 dull)\n",
    "test.txt": b"(1 (2 not) (2 good))\n(3 fine)\n",
}


def images(*parents, each=3):
    """Path -> image, `each` in bee and in cat below every parent; no two images are the same."""
    folders = [f"{parent}/{name}".lstrip("/") for parent in parents for name in ("bee", "cat")]
    return {
        f"{folder}/{i}.png": encoded(np.full((4, 4, 3), 10 * at + i, np.uint8))
        for at, folder in enumerate(folders)
        for i in range(each)
    }


def running(name, *flags, make=lambda folder: None):
    def command(folder):
        make(folder)
        return ["run", f"--config={ROOT}/configs/digits.py:quick", f"--config.data.name={name}", "--workdir=w", *flags]

    return command


def escaping(folder):
    write_archive(folder / "x.tar", {"../escaped/cat/0.png": b""} | images("train"))


CASES = [
    Case("nothing there", running("folder:gone"), "there is no such folder or archive"),
    Case("a name of two lines", running("folder:a\nb"), "folder:a"),
    Case("an option that does not apply", running("digits", "--config.data.max_words=5"), "max_words is 5 for digits"),
    Case("a name that leads out", running("folder:x.tar", make=escaping), "outside the destination"),
    Case("words without vectors", running("digits", "--config.data.embeddings=gone.txt"), "gone.txt"),
]
