"""The calibrate command's composition: outputs of a classifier compared, and everything written into --out."""

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from warnings import filterwarnings

import numpy as np

from focalgeo import calibration, records, report
from focalgeo.calibration import Fitted
from focalgeo.data.logits_files import Outputs
from focalgeo.job import program, say
from focalgeo.job.inputs import COMPARED, Inputs, Options, make_config
from focalgeo.job.warnings import input_warnings
from focalgeo.rows import Row, Seconds
from focalgeo.types import InputError

_LARGEST = 1e30  # of a statistic in the manifest: JSON has no infinity
# seconds of a core for a number alone, and for each bin: of an example at a pair of gamma and temperature, and of an
# example in a resample
_FIT, _RESAMPLE = (1.2e-8, 1.8e-10), (6e-8, 1e-8)


def run_and_print(options: Options, inputs: Inputs, *, command: list[str]) -> None:
    """Calibrate, and say on standard output what came out and where the report is."""
    rows, choice = run(options, inputs, command=command)
    out = Path(options.out)
    print(report.results_text(rows, records.read_manifest(out), "cross_fit" if inputs.test is None else "test"))
    numbers = {name: value for name, value in choice.parameters.items() if isinstance(value, float)}
    fitted = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    title = choice.method.title.lower()
    print(f"to use: {title}{f' ({fitted})' if fitted else ''}\nreport: {out / 'report.html'}")


def run(options: Options, inputs: Inputs, *, command: list[str]) -> tuple[list[Row], Fitted]:
    """Calibrate and write everything into --out; returns the rows and the method to use.

    Raises:
        InputError: a file cannot be written. RunError: a metric is not finite.
    """
    filterwarnings("ignore", category=calibration.ProbabilityWarning)  # the command has its own line
    out, val, test = Path(options.out), inputs.val, inputs.test
    _check_methods(options, inputs)
    with records.locked(out):
        manifest = {
            "config": make_config(options, inputs),
            "data": {"name": val.source.rpartition("/")[2]},
            "calibration": {},
            **program.of_program(command),
        }
        records.write_manifest(out, manifest)
        began = time.perf_counter()
        _say_how_long(options, val, test)
        say("fitting, cross-fitting and measuring")
        found = calibration.compare(
            _given(val),
            None if test is None else _given(test),
            options.methods or None,
            also=inputs.also,
            **{name: getattr(options, name) for name in COMPARED},
        )
        choice = found.choice.fitted
        rows = [*found.rows, Seconds("seconds", "evaluate", time.perf_counter() - began)]
        with records.writing(out):
            (out / records.METRICS_FILE).unlink(missing_ok=True)  # all its rows are made anew, whatever it holds
        records.replace_rows(out, rows, where=lambda row: True)
        if found.search:
            records.write_arrays(out, "search", found.search)
        _write_probabilities(out, inputs, found)
        fits = [each for each in found.fits if each.criterion]
        saved = calibration.calibrator_json(choice, inputs=manifest["config"]["inputs"], fits=fits)
        records.write_json(out / "calibrator.json", saved)
        warnings = input_warnings(options, inputs, found.fits)
        for warning in warnings:
            say(f"warning: {warning}")
        records.write_manifest(out, {**manifest, "calibration": _summary(options, inputs, found, saved, warnings)})
        say("drawing the report")
        report.write_report(out)
    return rows, choice


def _check_methods(options: Options, inputs: Inputs) -> None:
    """Refuse methods that `compare` would refuse, before anything is written, and in words of the flags."""
    given = {name: getattr(options, name) for name in ("criterion", "criteria", "metrics", "trained_gamma")}
    num_classes = inputs.val.logits.shape[1]
    try:
        calibration.checked_methods(options.methods or None, num_classes=num_classes, also=inputs.also, **given)
    except InputError as error:
        text = re.sub(r"^(methods|criteria|metrics|also) ", r"--\1 ", str(error))
        raise InputError(text.replace("give trained_gamma", "give --trained-gamma=GAMMA")) from error


def _given(outputs: Outputs) -> calibration.Outputs:
    return calibration.Outputs(outputs.logits, outputs.labels, outputs.group)


def _summary(
    options: Options,
    inputs: Inputs,
    found: calibration.Comparison,
    saved: Mapping[str, Any],
    warnings: Sequence[str],
) -> dict[str, Any]:
    """The manifest's entry on what was chosen, and how."""
    summary = {
        "split": "cross_fit" if inputs.test is None else "test",
        "criterion": options.criterion,
        "choice": {name: saved[name] for name in ("method", "criterion", "num_classes", "parameters")},
        "level": found.choice.level,
        "refused": found.choice.refused,
        "beaten": found.choice.beaten,
        "warnings": warnings,
    }
    if found.choice.test is not None:
        statistic = float(np.clip(found.choice.test.statistic, -_LARGEST, _LARGEST))
        summary["score_test"] = {"statistic": statistic, "p_value": found.choice.test.p_value}
    return summary | ({} if options.trained_gamma is None else {"trained_gamma": options.trained_gamma})


def _say_how_long(options: Options, val: Outputs, test: Outputs | None) -> None:
    """Say how many minutes of a core what is asked for takes, where these are two or more."""
    pairs, n = len(calibration.GAMMAS) * len(calibration.comparison.TEMPERATURES), len(val.labels)
    fits = pairs * n * (_FIT[0] + _FIT[1] * options.num_bins)
    fits *= 1 if test is not None and options.criterion == "nll" else 1 + options.num_folds
    measured = n if test is None else n + len(test.labels)
    seconds = fits + measured * options.num_resamples * (_RESAMPLE[0] + _RESAMPLE[1] * options.num_bins)
    if seconds > 120:
        what = f"{options.num_resamples:,} resamples, {options.num_bins:,} bins and {options.num_folds} folds"
        say(f"this takes about {seconds / 60:,.0f} minutes of one core: {what}")


def _write_probabilities(out: Path, inputs: Inputs, found: calibration.Comparison) -> None:
    """Write probabilities/{val,test}.npz by the chosen method; without test cross_fit.npz, each fold by its own fit.

    Each holds probs and log_probs, float32 [examples, classes], and labels; log_probs keep what probs round to 0 or 1.
    """
    chosen, val, test = found.choice.fitted, inputs.val, inputs.test
    written = {"val": (chosen.predict_log_proba(val.logits), val)}
    if test is None:
        own = (chosen.method.name, chosen.criterion)
        held_out = next(each for each in found.held_out if (each.method.name, each.criterion) == own)
        written["cross_fit"] = (held_out.log_probs, val)
    else:
        written["test"] = (chosen.predict_log_proba(test.logits), test)
    for split, (log_probs, outputs) in written.items():
        log_probs = np.asarray(log_probs)
        arrays = {"probs": np.exp(log_probs), "log_probs": log_probs, "labels": outputs.labels}
        records.write_arrays(out, f"probabilities/{split}", arrays)
