"""Calibration as both commands compose it, and the steps of the calibrate command.

The calibrate command fits and chooses on val, measures on test or by cross-fitting, and writes.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from warnings import filterwarnings

import jax
import numpy as np

from focalgeo import calibration, evaluation, records, report
from focalgeo.calibration import METHODS, Calibrated, Fitted, Method, SavedCalibrator
from focalgeo.data.logits_files import Outputs
from focalgeo.evaluation import Sample
from focalgeo.job import preparation, provenance, say
from focalgeo.job.inputs import Options, make_config
from focalgeo.job.members import Member
from focalgeo.job.warnings import input_warnings
from focalgeo.rows import Difference, Row, Seconds, select
from focalgeo.types import Array, Predictions, RunError

GAMMAS = np.sort(np.float32(calibration.GAMMAS))
# the main job's grid, and coarsely on from there: outputs of other programs may be scaled by anything
TEMPERATURES = np.float32([*calibration.TEMPERATURES, *np.geomspace(5.1, 100, 60)])
# seconds of a core for a number alone, and for each bin: of an example at a pair of gamma and temperature, and of an
# example in a resample
_FIT, _RESAMPLE = (1.2e-8, 1.8e-10), (6e-8, 1e-8)


class Fits(NamedTuple):
    """The fits on val, and the search that they come from, as search.npz holds it."""

    fits: list[Fitted]
    search: dict[str, np.ndarray]  # gammas, temperatures, ece and nll [gammas, temperatures]; {} where none was needed


def fit_on_val(
    methods: Mapping[str, Method],
    logits: Array,
    labels: Array,
    *,
    settings: Mapping[str, Any],
    mask: Array | None = None,
) -> Fits:
    """Every method by each of its criteria, those that search the grid of gamma and temperature by one search.

    settings: "gammas", "temperatures", "binning", "num_bins" and "trained_gamma", the options of methods, and "search"
    where it is known.
    """
    if not any("search" in method.options for method in methods.values()):
        return Fits(calibration.fit_methods(methods, logits, labels, settings=settings, mask=mask), {})
    search = settings.get("search") or calibration.searched(logits, labels, settings=settings, mask=mask)
    fits = calibration.fit_methods(methods, logits, labels, settings={**settings, "search": search}, mask=mask)
    surfaces = {"ece": np.asarray(search.ece), "nll": np.asarray(search.nll)}
    return Fits(fits, {name: settings[name] for name in ("gammas", "temperatures")} | surfaces)


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
    parts = [[_attempted(evaluation.fit_rows, each.fits, n=len(predictions["val"].labels))] for each in fits]
    for split, outputs in predictions.items():

        def sample(index: int, split: str = split, outputs: Predictions = outputs) -> Sample:
            calibrated = [fitted.calibrated(outputs.logits[:, index]) for fitted in fits[index].fits]
            key = members[index].keys["bootstrap"]
            return Sample(split, outputs.labels, calibrated, key, options.num_bins, options.num_resamples)

        measured = evaluation.measure_members(sample(index) for index in range(len(members)))
        for part, (of_member, numbers) in zip(parts, measured, strict=True):
            pairs = evaluation.comparisons(of_member.calibrated) if split == "test" else ()
            part.append(_attempted(evaluation.calibration_rows, of_member, pairs, measured=numbers))
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
    return any("search" in METHODS[name].options for name in config.evaluation.methods or METHODS)


def _fit_members(members: Sequence[Member], val: Predictions) -> list[Fits]:
    """`fit_on_val` of each member; one call makes the searches of all."""
    options = members[0].config.evaluation
    count = round(options.max_temperature / options.temperature_step)
    settings = {
        "gammas": np.asarray(options.gammas, np.float32),
        "temperatures": (np.arange(1, count + 1) * options.temperature_step).astype(np.float32),
        "binning": options.binning,
        "num_bins": options.num_bins,
    }
    logits = np.ascontiguousarray(np.moveaxis(val.logits, 1, 0))
    mask = None if np.all(val.mask) else val.mask
    methods = {
        name: METHODS[name] for name in METHODS if name in (options.methods or METHODS) or name == "uncalibrated"
    }
    own = [{**settings, "trained_gamma": preparation.trained_gamma(member.config)} for member in members]
    if any("search" in method.options for method in methods.values()):
        searches = calibration.searched_members(logits, val.labels, settings=settings, mask=mask)
        own = [{**each, "search": search} for each, search in zip(own, searches, strict=True)]
    return [
        fit_on_val(calibration.usable(methods, each), of_member, val.labels, settings=each, mask=mask)
        for of_member, each in zip(logits, own, strict=True)
    ]


def run_and_print(options: Options, val: Outputs, test: Outputs | None, *, command: list[str]) -> None:
    """Calibrate, and say on standard output what came out and where the report is."""
    rows, choice = run(options, val, test, command=command)
    out = Path(options.out)
    print(report.results_text(rows, records.read_manifest(out), "cross_fit" if test is None else "test"))
    numbers = {name: value for name, value in choice.parameters.items() if isinstance(value, float)}
    fitted = ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())
    title = METHODS[choice.method].title.lower()
    print(f"to use: {title}{f' ({fitted})' if fitted else ''}\nreport: {out / 'report.html'}")


def run(
    options: Options, val: Outputs, test: Outputs | None, *, command: list[str]
) -> tuple[list[Row], SavedCalibrator]:
    """Calibrate and write everything into --out; returns the rows and the method to use.

    Raises:
        InputError: a file cannot be written. RunError: a metric is not finite.
    """
    filterwarnings("ignore", category=calibration.ProbabilityWarning)  # the command has its own line
    out = Path(options.out)
    with records.locked(out):
        manifest = {
            "config": make_config(options, val, test),
            "data": {"name": val.source.rpartition("/")[2]},
            "calibration": {},
            **provenance.of_program(command),
        }
        records.write_manifest(out, manifest)
        began = time.perf_counter()
        settings = {name: getattr(options, name) for name in ("binning", "num_bins", "trained_gamma")}
        settings |= {"gammas": GAMMAS, "temperatures": TEMPERATURES}
        methods = calibration.usable(METHODS, settings)
        _say_how_long(options, val, test)
        say(f"fitting {' and '.join(m.title.lower() for m in methods.values() if m.criteria)} on val")
        fits, search = fit_on_val(methods, val.logits, val.labels, settings=settings)
        if search:
            records.write_arrays(out, "search", search)
        folds = {"num_folds": options.folds, "seed": options.seed}
        held_out = calibration.cross_fit(methods, val.logits, val.labels, settings=settings, **folds)
        fitted = time.perf_counter()
        say("measuring")
        rows = [*evaluation.fit_rows(fits, n=len(val.labels)), *_measured(options, val, test, fits, held_out)]
        differences = select(rows, Difference, split="cross_fit")
        chosen = calibration.choose(fits, differences, criterion=options.criterion)
        choice = calibration.saved_calibrator(chosen, val.logits.shape[1])
        rows += [
            Seconds("seconds", "fit", fitted - began),
            Seconds("seconds", "evaluate", time.perf_counter() - fitted),
        ]
        with records.writing(out):
            (out / records.METRICS_FILE).unlink(missing_ok=True)  # all its rows are made anew, whatever it holds
        records.replace_rows(out, rows, where=lambda row: True)
        _write_probabilities(out, val, test, chosen, held_out[fits.index(chosen)])
        saved = calibration.calibrator_json(
            choice, inputs=manifest["config"]["inputs"], fits=[each for each in fits if each.criterion]
        )
        records.write_json(out / "calibrator.json", saved)
        warnings = input_warnings(options, val, test, fits)
        for warning in warnings:
            say(f"warning: {warning}")
        found = {
            "split": "cross_fit" if test is None else "test",
            "criterion": options.criterion,
            "choice": choice._asdict(),
            "warnings": warnings,
        }
        found |= {} if options.trained_gamma is None else {"trained_gamma": options.trained_gamma}
        records.write_manifest(out, {**manifest, "calibration": found})
        say("drawing the report")
        report.write_report(out)
    return rows, choice


def _say_how_long(options: Options, val: Outputs, test: Outputs | None) -> None:
    """Say how many minutes of a core what is asked for takes, where these are two or more."""
    pairs, n = GAMMAS.size * TEMPERATURES.size, len(val.labels)
    fits = pairs * n * (1 + options.folds) * (_FIT[0] + _FIT[1] * options.num_bins)
    measured = n if test is None else 2 * n + len(test.labels)
    seconds = fits + measured * options.num_resamples * (_RESAMPLE[0] + _RESAMPLE[1] * options.num_bins)
    if seconds > 120:
        what = f"{options.num_resamples:,} resamples, {options.num_bins:,} bins and {options.folds} folds"
        say(f"this takes about {seconds / 60:,.0f} minutes of one core: {what}")


def _measured(
    options: Options, val: Outputs, test: Outputs | None, fits: Sequence[Fitted], held_out: Sequence[Calibrated]
) -> list[Row]:
    """Rows of test, of val, and of the cross-fit by which a method is chosen; without test of the cross-fit alone."""
    if test is None:
        return _compared(options, _sample(options, "cross_fit", val, held_out), val.group)
    competing = _competing(options, held_out)
    on_test, on_val = ([fitted.calibrated(outputs.logits) for fitted in fits] for outputs in (test, val))
    with ThreadPoolExecutor(2) as pool:  # two programs are compiled and run side by side
        compared = pool.submit(_compared, options, _sample(options, "test", test, on_test), test.group)
        pairs = evaluation.comparisons(competing, criterion=options.criterion)
        by_folds = pool.submit(evaluation.difference_rows, _sample(options, "cross_fit", val, competing), pairs)
        rows = compared.result() + by_folds.result()
    return rows + evaluation.calibration_rows(_sample(options, "val", val, on_val))


def _compared(options: Options, sample: Sample, group: np.ndarray | None) -> list[Row]:
    """Rows of a split on which methods are compared: metrics, differences, and those of two classes and of groups."""
    pairs = evaluation.comparisons(sample.calibrated, criterion=options.criterion)
    rows = evaluation.calibration_rows(sample, pairs)
    competing = sample._replace(calibrated=_competing(options, sample.calibrated))
    if competing.calibrated[0].log_probs.shape[1] == 2:
        rows += evaluation.class1_rows(competing)
    if group is not None:
        rows += evaluation.group_rows(competing, group)
    return rows


def _competing(options: Options, calibrated: Sequence[Calibrated]) -> list[Calibrated]:
    """The uncalibrated predictions, and each fitted method by one criterion."""
    positions = calibration.candidates(calibrated, options.criterion)
    return [calibrated[0], *(calibrated[index] for index in positions)]


def _sample(options: Options, split: str, outputs: Outputs, calibrated: Sequence[Calibrated]) -> Sample:
    # the main job's bootstrap key of the same seed, so that its predictions give its own rows again
    key = jax.random.split(jax.random.PRNGKey(options.seed), 4)[3]
    return Sample(split, outputs.labels, calibrated, key, options.num_bins, options.num_resamples)


def _write_probabilities(out: Path, val: Outputs, test: Outputs | None, chosen: Fitted, held_out: Calibrated) -> None:
    """Write probabilities/{val,test}.npz by the chosen method; without test cross_fit.npz, each fold by its own fit.

    Each holds probs and log_probs, float32 [examples, classes], and labels; log_probs keep what probs round to 0 or 1.
    """
    found = {"val": (chosen.log_probs(val.logits), val)}
    found |= (
        {"cross_fit": (held_out.log_probs, val)} if test is None else {"test": (chosen.log_probs(test.logits), test)}
    )
    for split, (log_probs, outputs) in found.items():
        log_probs = np.asarray(log_probs)
        arrays = {"probs": np.exp(log_probs), "log_probs": log_probs, "labels": outputs.labels}
        records.write_arrays(out, f"probabilities/{split}", arrays)
