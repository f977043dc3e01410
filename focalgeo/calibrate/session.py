"""The steps of door 2: fit and choose on val, measure on test or by cross-fitting, write."""

import datetime
import platform
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from focalgeo import calibration, evaluation, records, report
from focalgeo.calibrate import probabilities
from focalgeo.calibrate.calibrator import SavedCalibrator, write_calibrator
from focalgeo.calibrate.cautions import cautions
from focalgeo.calibrate.choice import CROSS_FIT, choose
from focalgeo.calibrate.crossfit import cross_fit
from focalgeo.calibrate.flags import Options
from focalgeo.calibrate.inputs import make_config
from focalgeo.calibrate.measurement import compare, measure, measure_val
from focalgeo.data.logits_files import Outputs
from focalgeo.evaluation import Calibrator
from focalgeo.types import Predictions

GAMMAS = np.sort(np.float32(calibration.GAMMAS))
# the main job's grid, and coarsely on from there: outputs of other programs may be scaled by anything
TEMPERATURES = np.float32([*calibration.TEMPERATURES, *np.geomspace(5.1, 100, 60)])


def run_and_print(options: Options, val: Outputs, test: Outputs | None, *, command: list[str]) -> None:
    """Calibrate, and say on standard output what came out and where the report is."""
    rows, choice = run(options, val, test, command=command)
    split = "cross_fit" if test is None else "test"
    measured = [row for row in rows if row.get("split") == split and "map" in row and row["name"] in ("nll", "ece")]
    values = {(row["map"], row.get("criterion"), row["name"]): row["value"] for row in measured}
    print(f"{'on val, cross-fitted' if test is None else 'on test':<34}     NLL     ECE")
    for name, criterion in dict.fromkeys((row["map"], row.get("criterion")) for row in measured):
        label = name.replace("_", " ") + (f" by {criterion.upper()}" if criterion else "")
        print(f"{label:<34} {values[name, criterion, 'nll']:7.4f} {values[name, criterion, 'ece']:7.4f}")
    fitted = f"gamma {choice.gamma:g}, temperature {choice.temperature:.4g}"
    print(f"to use: {choice.map.replace('_', ' ')} ({fitted})\nreport: {Path(options.out) / 'report.html'}")


def run(
    options: Options, val: Outputs, test: Outputs | None, *, command: list[str]
) -> tuple[list[dict[str, Any]], SavedCalibrator]:
    """Calibrate and write everything into --out; returns the rows and the map to use.

    Raises:
        InputError: a file cannot be written. RunError: a metric is not finite.
    """
    out = Path(options.out)
    with records.locked(out):
        manifest = _manifest(options, val, test, command)
        records.write_manifest(out, manifest)
        began = time.perf_counter()
        _say("fitting temperature scaling and focal temperature scaling on val")
        fits, search = _fit(options, _predictions(val))
        records.write_arrays(out, "search", search)
        held_out = cross_fit(val, lambda part: _fit(options, part)[0], options)
        fitted = time.perf_counter()
        _say("measuring")
        rows = [row for fit in fits for row in evaluation.fit_rows(fit, len(val.labels))]
        if test is None:
            split = CROSS_FIT
            rows += measure(options, split, val, _predictions(val), held_out)
        else:
            split = "test"
            rows += measure(options, split, test, _predictions(test), fits)
            rows += measure_val(options, _predictions(val), fits)
            rows += compare(options, CROSS_FIT, _predictions(val), held_out)
        choice = choose(
            rows, fits, criterion=options.criterion, num_classes=val.logits.shape[1], ends=TEMPERATURES[[0, -1]]
        )
        seconds = {"fit": fitted - began, "evaluate": time.perf_counter() - fitted}
        rows += [{"name": "seconds", "phase": phase, "value": value} for phase, value in seconds.items()]
        records.replace_rows(out, rows, where=lambda row: True)
        probabilities.write(out, choice, val, test, held_out)
        settings = [{**fit.place, "gamma": fit.gamma, "temperature": fit.temperature} for fit in fits]
        write_calibrator(out / "calibrator.json", choice, inputs=manifest["config"]["inputs"], fits=settings)
        warnings = cautions(options, val, test, fits, temperatures=TEMPERATURES)
        for warning in warnings:
            _say(f"warning: {warning}")
        found = {"split": split, "criterion": options.criterion, "choice": choice._asdict(), "warnings": warnings}
        found |= {} if options.trained_gamma is None else {"trained_gamma": options.trained_gamma}
        records.write_manifest(out, {**manifest, "calibration": found})
        _say("drawing the report")
        report.write_report(out)
    return rows, choice


def _predictions(outputs: Outputs) -> Predictions:
    return Predictions(outputs.logits, outputs.labels, np.ones(len(outputs.labels), bool))


def _fit(options: Options, val: Predictions) -> tuple[list[Calibrator], dict[str, np.ndarray]]:
    grid = {"gammas": GAMMAS, "temperatures": TEMPERATURES}
    fits, search = evaluation.fit_calibrators(val, **grid, num_bins=options.num_bins, binning=options.binning)
    return fits, {**grid, "ece": np.asarray(search.ece), "nll": np.asarray(search.nll)}


def _manifest(options: Options, val: Outputs, test: Outputs | None, command: list[str]) -> dict[str, Any]:
    versions = {name: metadata.version(name) for name in ("focalgeo", "jax", "numpy")}
    return {
        "config": make_config(options, val, test),
        "data": {"name": val.source.rpartition("/")[2]},
        "calibration": {},
        "command": command,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "platform": platform.platform(),
        "versions": {"python": platform.python_version(), **versions},
    }


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)
