"""Workdirs as runs of MLflow, in the store MLFLOW_TRACKING_URI names: python examples/mlflow_runs.py runs/digits ..."""

import re
import sys

import mlflow

from focalgeo import config, records, rows

for workdir in sys.argv[1:]:
    steps = {}
    for row in records.read_rows(workdir):
        if not hasattr(row, "bin"):
            steps.setdefault(row.step or 0, {})[re.sub(r"[^\w./ -]", "_", rows.series(row))] = row.value
    with mlflow.start_run(run_name=workdir):
        mlflow.log_params(dict(config.flat(records.read_manifest(workdir)["config"])))
        for step, values in sorted(steps.items()):
            mlflow.log_metrics(values, step=step)
