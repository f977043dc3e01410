"""Rows of a workdir as event files for TensorBoard: python examples/tensorboard.py runs/digits [runs/gammas ...]."""

import sys

from tensorboardX import SummaryWriter

from focalgeo import records, rows

for workdir in sys.argv[1:]:
    with SummaryWriter(f"{workdir}/tensorboard") as writer:
        for row in records.read_rows(workdir):
            if not hasattr(row, "bin"):
                writer.add_scalar(rows.series(row), row.value, row.step or 0)
