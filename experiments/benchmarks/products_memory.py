"""Peak memory of a Hessian-vector product over many images, each number of images in a fresh process of its own.

python -m experiments.benchmarks.products_memory --images 500      one product through ResNet-18, batches of 50

The peak is the resident set of the whole process, the interpreter and JAX included, as the system counts it; "before"
is that peak once the images are read, which takes the archive's decompressor, and nothing is compiled. CIFAR-10 is read
from the folder that FOCALGEO_DATA names; without it the images are random, which changes no shape.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import jax
import numpy as np
import optax

from experiments.benchmarks.memory import peak_megabytes
from experiments.benchmarks.problems import make_problem
from experiments.flags import Parser
from focalgeo import trees
from focalgeo.evaluation import data_matvec, make_batch_loss
from focalgeo.types import Batch

ARCHIVE = "cifar10-jpeg.tar.xz"


def main(arguments: list[str] | None = None) -> None:
    """Prints one line of JSON: images, seconds of one product, peak megabytes."""
    parser = Parser("benchmarks.products_memory", __doc__)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--network", default="ResNet-18")
    options = parser.parse_args(arguments)
    x, y, source = read_images(options.images)
    problem = make_problem(options.network, 2)
    height, width, channels = problem.x.shape[1:]
    x = x[:, :height, :width, :channels]
    batches = Anew(x, y, options.batch)
    batch_loss = make_batch_loss(problem.apply, optax.softmax_cross_entropy_with_integer_labels, len(y))
    matvec = data_matvec(batch_loss, problem.params, problem.model_state, batches)
    before, start = peak_megabytes(), time.perf_counter()
    jax.block_until_ready(matvec(trees.rademacher(jax.random.key(0), problem.params)))
    took = time.perf_counter() - start
    found = {"images": len(y), "batch": options.batch, "source": source, "images MB": round(x.nbytes / 1e6, 1)}
    print(
        json.dumps({**found, "seconds": round(took, 1), "before MB": round(before), "peak MB": round(peak_megabytes())})
    )


@dataclass(frozen=True)
class Anew:
    """Batches that are scaled to [-1, 1] from the stored bytes at every iteration, and kept by nobody."""

    x: np.ndarray  # uint8 [examples, height, width, channels]
    y: np.ndarray
    size: int

    def __iter__(self) -> Iterator[Batch]:
        """The batches in order; the last may be short."""
        for start in range(0, len(self.y), self.size):
            x, y = (array[start : start + self.size] for array in (self.x, self.y))
            yield Batch(x / np.float32(127.5) - np.float32(1), y, np.ones(len(y), bool))


def measured(images: int, *, batch: int, network: str) -> dict:
    """What `main` prints, from a fresh process."""
    command = [sys.executable, "-m", "experiments.benchmarks.products_memory", f"--images={images}"]
    done = subprocess.run(
        [*command, f"--batch={batch}", f"--network={network}"], capture_output=True, text=True, check=True
    )
    return {"network": network, **json.loads(done.stdout.splitlines()[-1])}


def read_images(count: int) -> tuple[np.ndarray, np.ndarray, str]:
    """The first `count` training images of the archive as bytes, with their classes, or random ones."""
    archive = Path(os.environ.get("FOCALGEO_DATA") or "unset") / ARCHIVE
    if not archive.exists():
        generator = np.random.default_rng(0)
        x = generator.integers(256, size=(count, 32, 32, 3), dtype=np.uint8)
        return x, generator.integers(10, size=count).astype(np.int32), "random"
    import io
    import tarfile

    from PIL import Image

    x, y, classes = np.empty((count, 32, 32, 3), np.uint8), np.empty(count, np.int32), {}
    with tarfile.open(archive, mode="r|xz") as stream:
        images = (member for member in stream if member.name.endswith(".jpg"))
        for index, member in enumerate(islice(images, count)):
            x[index] = np.asarray(Image.open(io.BytesIO(stream.extractfile(member).read())).convert("RGB"))
            y[index] = classes.setdefault(Path(member.name).parent.name, len(classes))
    return x, y, "CIFAR-10"


if __name__ == "__main__":
    main()
