"""Peak memory of one search in a fresh process: python -m experiments.benchmarks.memory [--criterion=adaptive_ece].

The peak is the resident set of the whole process, the interpreter and JAX included, as the system counts it.
"""

import re
import resource
import sys
import time
from pathlib import Path

import numpy as np

from experiments.flags import Parser
from focalgeo.calibration import GAMMAS, TEMPERATURES, grid_search


def main(arguments: list[str] | None = None) -> None:
    """Prints the size of the logits, the peaks before and after the search, and the search's seconds."""
    parser = Parser("benchmarks.memory", __doc__)
    parser.add_argument("--examples", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--temperatures", type=int, default=500)
    parser.add_argument("--criterion", default="ece")
    options = parser.parse_args(arguments)
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((options.examples, options.classes), dtype=np.float32)
    logits *= 2  # in place, so that the peak before the search is that of the logits
    labels = generator.integers(options.classes, size=options.examples)
    before, start = peak_megabytes(), time.perf_counter()
    temperatures = TEMPERATURES[:: max(1, len(TEMPERATURES) // options.temperatures)]
    grid_search(logits, labels, GAMMAS, temperatures, criterion=options.criterion)
    took, size = time.perf_counter() - start, logits.nbytes / 1e6
    print(
        f"{options.criterion}, {len(GAMMAS)} x {len(temperatures)} points: logits {size:.0f} MB, peak before "
        f"{before:.0f} MB, after {peak_megabytes():.0f} MB, limit {2 * size + 300:.0f} MB; {took:.1f} s"
    )


def peak_megabytes() -> float:
    """The largest resident set that this process has had; Linux's getrusage would count what started it as well."""
    status = Path("/proc/self/status")
    found = status.exists() and re.search(r"^VmHWM:\s*(\d+) kB", status.read_text(), re.MULTILINE)
    if found:
        return int(found[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


if __name__ == "__main__":
    main()
