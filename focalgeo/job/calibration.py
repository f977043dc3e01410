"""Calibration as both commands compose it, and the steps of the calibrate command.

The calibrate command fits and chooses on val, measures on test or by cross-fitting, and writes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from focalgeo import calibration, records, report
from focalgeo.calibration import DEFAULT_METHODS, METHODS, Fitted, Method, Sample, SavedCalibrator
from focalgeo.data.logits_files import Outputs
from focalgeo.job import preparation, provenance, say
from focalgeo.job.inputs import COMPARED, Inputs, Options, make_config
from focalgeo.job.members import Member
from focalgeo.job.warnings import input_warnings
from focalgeo.rows import Metric, Row, Seconds
from focalgeo.types import Array, Predictions, RunError

# seconds of a core for a number alone, and for each bin: of an example at a pair of gamma and temperature, and of an
# example in a resample
_FIT, _RESAMPLE = (1.2e-8, 1.8e-10), (6e-8, 1e-8)


class Fits(NamedTuple):
    """The fits on val, and the search that they come from, as search.npz holds it."""

    fits: list[Fitted]
    search: dict[str, np.ndarray]  # gammas, temperatures, and on them ece, nll, ...; {} where none was needed


def fit_on_val(
    methods: Mapping[str, Method],
    logits: Array,
    labels: Array,
    *,
    settings: Mapping[str, Any],
    mask: Array | None = None,
) -> Fits:
    """Every method by each of its criteria, those that search the grid of gamma and temperature by one search.

    settings: "criteria", "gammas", "temperatures", "num_bins" and "trained_gamma", the options of methods, and
    "searches" where they are known.
    """
    searches = settings.get("searches")
    if searches is None:
        searches = calibration.searched(methods, logits, labels, settings=settings, mask=mask)
    fits = calibration.fit_methods(methods, logits, labels, settings={**settings, "searches": searches}, mask=mask)
    return Fits(fits, calibration.surfaces(searches, settings))


class Calibration(NamedTuple):
    """Calibration of one member on val and test."""

    rows: list[Row]
    search: dict[str, np.ndarray]  # on val, as in Fits


def calibrate_members(
    members: Sequence[Member], predictions: Mapping[str, Predictions]
) -> list[Calibration | RunError]:
    """Calibration of members of the main job on val and test; for one whose numbers are not finite, what is wrong.

    Methods are those of config.evaluation.methods, or all, as far as they can be used after a member's training.

    Args:
        members: Of one sweep.
        predictions: Of each split, logits [examples, members, classes].
    """
    wrong = [_not_finite(predictions, index) for index in range(len(members))]
    finite = [index for index, error in enumerate(wrong) if error is None]
    own = {split: outputs._replace(logits=outputs.logits[:, finite]) for split, outputs in predictions.items()}
    found = iter(_calibrate_finite([members[index] for index in finite], own) if finite else [])
    return [error or next(found) for error in wrong]


def _not_finite(predictions: Mapping[str, Predictions], index: int) -> RunError | None:
    split = next((name for name, each in predictions.items() if not np.isfinite(each.logits[:, index]).all()), None)
    return None if split is None else RunError(f"logits on {split} are not finite")


def _calibrate_finite(
    members: Sequence[Member], predictions: Mapping[str, Predictions]
) -> list[Calibration | RunError]:
    options, fits = members[0].config.evaluation, _fit_members(members, predictions["val"])
    parts = [[_attempted(calibration.fit_rows, each.fits, n=len(predictions["val"].labels))] for each in fits]
    for split, outputs in predictions.items():

        def sample(index: int, split: str = split, outputs: Predictions = outputs) -> Sample:
            calibrated = [fitted.calibrated(outputs.logits[:, index]) for fitted in fits[index].fits]
            key = members[index].keys["bootstrap"]
            return Sample(split, outputs.labels, calibrated, key, options.num_bins, options.num_resamples)

        samples = (sample(index) for index in range(len(members)))
        measured = calibration.measure_members(samples, options.metrics)
        for part, (of_member, numbers) in zip(parts, measured, strict=True):
            pairs = calibration.comparisons(of_member.calibrated, "nll") if split == "test" else ()
            part.append(_attempted(calibration.calibration_rows, of_member, pairs, options.metrics, measured=numbers))
    return [_calibration(part, each.search) for part, each in zip(parts, fits, strict=True)]


def _attempted(make: Callable[..., list[Row]], *arguments: Any, **options: Any) -> list[Row] | RunError:
    try:
        return make(*arguments, **options)
    except RunError as error:
        return error


def _calibration(parts: Sequence[list[Row] | RunError], search: dict[str, np.ndarray]) -> Calibration | RunError:
    errors = [part for part in parts if isinstance(part, RunError)]
    return errors[0] if errors else Calibration([row for part in parts for row in part], search)


def searches(config) -> bool:
    """Whether a method of config.evaluation.methods searches a grid of gamma and temperature."""
    methods = {name: METHODS[name] for name in config.evaluation.methods or DEFAULT_METHODS}
    return bool(calibration.searched_criteria(methods, {"criteria": config.evaluation.criteria}))


def _fit_members(members: Sequence[Member], val: Predictions) -> list[Fits]:
    """`fit_on_val` of each member; one call makes the searches of all."""
    options = members[0].config.evaluation
    count = round(options.max_temperature / options.temperature_step)
    settings = {
        "gammas": np.asarray(options.gammas, np.float32),
        "temperatures": (np.arange(1, count + 1) * options.temperature_step).astype(np.float32),
        "criteria": options.criteria,
        "num_bins": options.num_bins,
    }
    logits = np.ascontiguousarray(np.moveaxis(val.logits, 1, 0))
    mask = None if np.all(val.mask) else val.mask
    chosen = ("uncalibrated", *(options.methods or DEFAULT_METHODS))
    methods = {name: method for name, method in METHODS.items() if name in chosen and _takes(method, logits.shape[-1])}
    own = [{**settings, "trained_gamma": preparation.trained_gamma(member.config)} for member in members]
    searches = calibration.searched_members(methods, logits, val.labels, settings=settings, mask=mask)
    own = [{**each, "searches": search} for each, search in zip(own, searches, strict=True)]
    return [
        fit_on_val(calibration.usable(methods, each), of_member, val.labels, settings=each, mask=mask)
        for of_member, each in zip(logits, own, strict=True)
    ]


def _takes(method: Method, num_classes: int) -> bool:
    return method.most_classes is None or num_classes <= method.most_classes


def run_and_print(options: Options, inputs: Inputs, *, command: list[str]) -> None:
    """Calibrate, and say on standard output what came out and where the report is."""
    rows, choice = run(options, inputs, command=command)
    out = Path(options.out)
    print(report.results_text(rows, records.read_manifest(out), "cross_fit" if inputs.test is None else "test"))
    numbers = {name: value for name, value in choice.parameters.items() if isinstance(value, float)}
    fitted = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    title = METHODS[choice.method].title.lower()
    print(f"to use: {title}{f' ({fitted})' if fitted else ''}\nreport: {out / 'report.html'}")


def run(options: Options, inputs: Inputs, *, command: list[str]) -> tuple[list[Row], SavedCalibrator]:
    """Calibrate and write everything into --out; returns the rows and the method to use.

    Raises:
        InputError: a file cannot be written. RunError: a metric is not finite.
    """
    out, val, test = Path(options.out), inputs.val, inputs.test
    calibration.checked_names(options.methods, options.criterion, options.criteria, options.metrics)
    with records.locked(out):
        manifest = {
            "config": make_config(options, inputs),
            "data": {"name": val.source.rpartition("/")[2]},
            "calibration": {},
            **provenance.of_program(command),
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
        choice = calibration.saved_calibrator(found.choice.fitted, val.logits.shape[1])
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
        warnings = input_warnings(options, val, test, found.fits)
        for warning in warnings:
            say(f"warning: {warning}")
        records.write_manifest(out, {**manifest, "calibration": _summary(options, found, choice, warnings)})
        say("drawing the report")
        report.write_report(out)
    return rows, choice


def _given(outputs: Outputs) -> calibration.Outputs:
    return calibration.Outputs(outputs.logits, outputs.labels, outputs.group)


def _summary(
    options: Options, found: calibration.Comparison, choice: SavedCalibrator, warnings: Sequence[str]
) -> dict[str, Any]:
    """The manifest's entry on what was chosen, and how."""
    held_out = {each.split for each in found.rows if isinstance(each, Metric)}
    summary = {
        "split": "test" if "test" in held_out else "cross_fit",
        "criterion": options.criterion,
        "choice": choice._asdict(),
        "level": found.choice.level,
        "refused": found.choice.refused,
        "beaten": found.choice.beaten,
        "warnings": warnings,
    }
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
