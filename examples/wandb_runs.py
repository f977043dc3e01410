"""Workdirs as runs of Weights & Biases: python examples/wandb_runs.py runs/digits ...; WANDB_MODE=offline is local."""

import sys

import wandb

from focalgeo import config, records, rows

for workdir in sys.argv[1:]:
    steps = {}
    for row in records.read_rows(workdir):
        if not hasattr(row, "bin"):
            steps.setdefault(row.step or 0, {})[rows.series(row)] = row.value
    settings = dict(config.flat(records.read_manifest(workdir)["config"]))
    with wandb.init(project="focalgeo", name=workdir, config=settings) as run:
        for step, values in sorted(steps.items()):
            run.log(values, step=step)
