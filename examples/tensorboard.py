"""Rows of a workdir as event files for TensorBoard: python examples/tensorboard.py runs/digits [runs/gammas ...]."""

import sys

from tensorboardX import SummaryWriter

from focalgeo import records

FIELDS = ("gamma", "learning_rate", "trace_penalty", "seed", "split", "name", "outcome", "method", "criterion", "loss")
for workdir in sys.argv[1:]:
    with SummaryWriter(f"{workdir}/tensorboard") as writer:
        for row in records.read_rows(workdir):
            if row.step is not None and not hasattr(row, "bin"):
                parts = [getattr(row, field, None) for field in FIELDS]
                writer.add_scalar("/".join(str(part) for part in parts if part is not None), row.value, row.step)
