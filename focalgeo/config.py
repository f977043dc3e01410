"""The config of a job: every field once, with default, range and meaning; how it is read, checked and printed. No jax.

A config file's `get_config` starts from `default_config()` and sets what differs. `--config.NAME=VALUE` sets a field on
the command line, and `python -m focalgeo.run --fields` prints them all.
"""

import ast
import difflib
import functools
import itertools
import math
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict, FrozenConfigDict

from focalgeo.types import (
    DEFAULT_CRITERIA,
    DEFAULT_METRICS,
    MOST_BINS,
    MOST_PAIRS,
    MOST_RESAMPLES,
    InputError,
    expanded,
    shown,
)


class Range(NamedTuple):
    """Range of a field: the kind of its value, or of each element of a tuple, and a condition on the value."""

    kind: type  # int, float, bool or str; dict for the options of the network
    holds: Callable[[Any], bool] = lambda value: True
    words: str = ""  # as in "it must {words}"
    many: bool = False  # a tuple
    optional: bool = False  # None too


class Field(NamedTuple):
    """One field of the config: default, range and meaning."""

    default: Any
    range: Range
    meaning: str


# float32 holds 3e38, and 1e-38 as well as 1: what a network makes of a value has room within these
_LARGEST, _SMALLEST = 1e30, 1e-30
_INT32 = 2**31 - 1  # JAX counts in int32
MOST_MEMBERS = 1000  # each is measured on its own
_MOST_PRODUCTS = 10_000  # each is a pass over all examples


def _whole(least: int, most: int = _INT32, *, words: str = "") -> Range:
    last = "2^31 - 1" if most == _INT32 else f"{most:,}"
    return Range(int, lambda value: least <= value <= most, f"{words or f'be {least} or more'}, at most {last}")


def _number(least: float, most: float) -> Range:
    return Range(float, lambda value: least <= value <= most, f"be from {least:g} to {most:g}")


def _choice(*names: str) -> Range:
    return Range(str, lambda value: value in names, f"be {', '.join(names[:-1])} or {names[-1]}")


def _ascend(values: Sequence[float]) -> bool:
    return list(values) == sorted(set(values))


def _all(holds: Callable[[float], bool], words: str, of_all: Callable[[Sequence], bool] = lambda values: True) -> Range:
    return Range(float, lambda values: all(map(holds, values)) and of_all(values), words, many=True)


def _differ(values: Sequence) -> bool:
    return len(set(values)) == len(values)


_AXIS = _all(lambda value: abs(value) <= _LARGEST, "hold finite numbers, each once", _differ)
_TEXT = Range(str)
_COUNT = _whole(1)
_SIZE = _COUNT._replace(optional=True)
_PATH = Range(str, words="be a path", optional=True)
# all images stay in memory: a thousand of the largest take 3 GB
_IMAGE_SIZE = _whole(1, 1024)._replace(optional=True)
_FROM_0_WHOLE = _whole(0)
_FROM_0 = _number(0, _LARGEST)
_RATE = _number(_SMALLEST, _LARGEST)
_PIXEL = _number(1e-6, 1e6)
_SHARE = Range(float, lambda value: 0 <= value < 1, "be at least 0 and below 1")
_FACTOR = _number(_SMALLEST, 1)
_STEP = Range(
    float,
    lambda value: 1e-3 <= value <= 1 and abs(round(1 / value) * value - 1) < 1e-6,
    "be 1/2, 1/100 ... or 1/1000, the smallest whose grid is searched in seconds",
)
_MEAN = _all(lambda value: abs(value) <= 1e6, "hold finite numbers, at most 1e6", len)
_STD = _all(lambda value: 1e-6 <= value <= 1e6, "hold finite numbers above 0, from 1e-6 to 1e6", len)
_THRESHOLDS = _all(lambda value: 0 < value < 1, "ascend, above 0 and below 1", _ascend)
_BOUNDARIES = _all(lambda value: 0 < value <= _INT32, "ascend, in epochs above 0, at most 2^31 - 1", _ascend)
_GAMMA = _number(-100, 100)
_GAMMAS = _all(lambda value: 0 <= value <= 100, "hold finite numbers, 0 or more, at most 100")
_ALPHA = _all(
    lambda weight: 0 <= weight <= _LARGEST,
    "hold finite weights, 0 or more, at most 1e30, and one above 0",
    lambda weights: not weights or any(weights),
)
_EPOCHS = _all(lambda value: 0 < value <= _INT32, "all be greater than 0, at most 2^31 - 1")
_GRID = _all(
    lambda gamma: -1 < gamma <= 100,
    "ascend, above -1, at most 100, and must hold 0, the plain temperature scaling to compare with",
    lambda gammas: 0 in gammas and _ascend(gammas),
)
_TEMPERATURE = _number(1, 1000)  # softer ones predict every class alike
_SPLITS = _all(
    {"train", "val", "test"}.__contains__,
    "hold val, train or test, each once",
    lambda splits: splits and _differ(splits),
)._replace(kind=str)
_BINS = _whole(1, MOST_BINS)
_RESAMPLES = _whole(2, MOST_RESAMPLES)
_PRODUCTS = _whole(2, _MOST_PRODUCTS)
_PROBES = _whole(4, _MOST_PRODUCTS, words="be 4 or more, to have a standard error")
_DENSITY = Range(int, lambda value: value in (0, *range(2, 1001)), "be 0 (no density), or 2 or more, at most 1,000")
_KEEP = _whole(2, words="be 2 or more, so that one is left when the newest is corrupt")
_TRACE_FORMS = ("taylor", "forward_over_forward", "jvp_of_grad")
_CALIBRATION_GAMMAS = (-0.5, -0.25, 0.0, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)

# The defaults are the job of configs/digits.py, which needs no download.
FIELDS: dict[str, Field] = {
    "seed": Field(
        0, _FROM_0_WHOLE, "seed of initial weights, order, augmentation, dropout, random vectors and bootstrap"
    ),
    "data.name": Field("digits", _TEXT, "name of the data set, with its path after a colon (docs/reference.md)"),
    "data.split_seed": Field(
        1, _FROM_0_WHOLE, "seed of subsets, and of the splits that the data set does not come with"
    ),
    "data.train_size": Field(None, _SIZE, "number of training examples; None for all"),
    "data.val_size": Field(None, _SIZE, "number of validation examples, by which everything is chosen; None for all"),
    "data.test_size": Field(None, _SIZE, "number of test examples, by which nothing is chosen; None for all"),
    "data.image_size": Field(None, _IMAGE_SIZE, "height and width of the resized images; None for their own"),
    "data.max_words": Field(None, _SIZE, "size of the vocabulary, which is the most frequent words; None for all"),
    "data.max_length": Field(
        None, _SIZE, "number of words read from the start of each document; None for the data set's own"
    ),
    "data.embeddings": Field(None, _PATH, "file of the word vectors that training begins with; None for random ones"),
    "data.augment": Field("none", _TEXT, "random augmentation of the training images"),
    "data.scale": Field(16.0, _PIXEL, "largest pixel value; pixels are divided by it first"),
    "data.mean": Field((0.305,), _MEAN, "mean of each channel, subtracted after the division by scale"),
    "data.std": Field((0.376,), _STD, "standard deviation of each channel, by which the difference is divided"),
    "model.name": Field("mlp", _TEXT, "name of the network"),
    "model.dtype": Field("float32", _choice("float32", "bfloat16"), "dtype of layers; parameters, logits are float32"),
    "model.precision": Field(
        "default",
        _choice("default", "high", "highest"),
        "bits of float32 products in training: a TPU's default is bfloat16, a GPU's may be TF32; measurements use all",
    ),
    "model.options": Field({}, Range(dict), "options of the network, as config.model.options.width=64; listed below"),
    "loss.name": Field("focal_loss", _TEXT, "name of the loss (docs/reference.md)"),
    "loss.gamma": Field(3.0, _GAMMA, "gamma of the focal losses and the confidence penalty"),
    "loss.smoothing": Field(0.05, _SHARE, "smoothing of label_smoothed_cross_entropy"),
    "loss.thresholds": Field((0.2,), _THRESHOLDS, "probabilities at which sample_dependent_focal_loss changes gamma"),
    "loss.boundaries": Field((100, 250), _BOUNDARIES, "epochs at which scheduled_focal_loss changes gamma"),
    "loss.gammas": Field((5.0, 3.0), _GAMMAS, "gammas between the thresholds or boundaries, one more than those"),
    "loss.penalty_weight": Field(2.0, _FROM_0, "weight of the kernel penalty of mmce and weighted_mmce"),
    "loss.alpha": Field((), _ALPHA, "weight of each class; () for 1"),
    "loss.trace_penalty": Field(0.0, _FROM_0, "weight of the trace of the batch's cross-entropy Hessian; 0 for none"),
    "loss.trace_of": Field("hessian", _choice("hessian", "gauss_newton"), "matrix whose trace is the penalty"),
    "loss.trace_examples": Field(
        0, _FROM_0_WHOLE, "examples of a batch, on all devices, that the trace is of; 0 for all"
    ),
    "loss.trace_form": Field("taylor", _choice(*_TRACE_FORMS), "automatic differentiation of the trace penalty"),
    "optimizer.name": Field("sgd", _TEXT, "name of the optimiser"),
    "optimizer.learning_rate": Field(0.1, _RATE, "highest learning rate of the schedule"),
    "optimizer.momentum": Field(0.9, _SHARE, "momentum of sgd"),
    "optimizer.nesterov": Field(False, Range(bool), "use Nesterov's form of momentum"),
    "optimizer.weight_decay": Field(5e-4, _FROM_0, "multiple of the parameters that is added to the gradient"),
    "optimizer.reduction": Field("mean", _choice("mean", "sum"), "reduction of a batch's losses, then minimised"),
    "optimizer.clip_norm": Field(0.0, _FROM_0, "largest norm of the gradient; 0 for any"),
    "optimizer.sam_radius": Field(0.0, _FROM_0, "radius of sharpness-aware minimisation; 0 for none"),
    "optimizer.sam_adaptive": Field(False, Range(bool), "measure that radius by each parameter's size, as ASAM does"),
    "optimizer.batch_size": Field(64, _COUNT, "training examples per step, on all devices of all processes together"),
    "optimizer.epochs": Field(60, _COUNT, "number of passes over the training examples"),
    "optimizer.schedule": Field("steps", _choice("steps", "cosine"), "schedule of the learning rate"),
    "optimizer.decay_epochs": Field(
        (40, 50), _EPOCHS, "epochs after which the schedule steps lowers the learning rate"
    ),
    "optimizer.decay_factor": Field(0.1, _FACTOR, "factor of the learning rate at each of decay_epochs"),
    "optimizer.warmup_epochs": Field(
        0, _FROM_0_WHOLE, "first epochs, in which the schedule cosine raises the learning rate"
    ),
    "optimizer.select": Field(
        "last", _choice("last", "best_val"), "epoch whose parameters are kept: the last, or the most accurate on val"
    ),
    "start.run": Field(
        None, _PATH, "workdir of the run from whose checkpoint training starts; None for random weights"
    ),
    "start.step": Field(None, _SIZE, "step of that checkpoint; None for the newest"),
    "start.modules": Field((), Range(str, many=True), "parts of the network that are taken from there; () for all"),
    "start.optimizer": Field(
        "fresh", _choice("fresh", "kept"), "state of the optimiser: fresh, or its momentum or moments kept from there"
    ),
    "log_every": Field(20, _COUNT, "number of steps between two rows of the training loss"),
    "checkpoint.every": Field(200, _COUNT, "number of steps between two checkpoints"),
    "checkpoint.keep": Field(3, _KEEP, "number of checkpoints that are kept; older ones are deleted"),
    "evaluation.batch_size": Field(512, _COUNT, "examples per call of the network in evaluation"),
    "evaluation.num_bins": Field(15, _BINS, "number of bins of ECE and of reliability diagrams"),
    "evaluation.methods": Field((), Range(str, many=True), "calibration methods beside uncalibrated; () for the usual"),
    "evaluation.criteria": Field(DEFAULT_CRITERIA, Range(str, many=True), "criteria by which methods are fitted"),
    "evaluation.metrics": Field(DEFAULT_METRICS, Range(str, many=True), "calibration metrics measured"),
    "evaluation.gammas": Field(
        _CALIBRATION_GAMMAS, _GRID, "grid of the focal calibration map's gamma; 0 is plain temperature scaling"
    ),
    "evaluation.temperature_step": Field(0.01, _STEP, "first temperature of the calibration grid, and its step"),
    "evaluation.max_temperature": Field(5.0, _TEMPERATURE, "last temperature of the calibration grid"),
    "evaluation.num_resamples": Field(1000, _RESAMPLES, "number of resamples of the bootstrap"),
    "curvature.splits": Field(("val",), _SPLITS, "splits on which curvature is measured"),
    "curvature.examples": Field(359, _FROM_0_WHOLE, "examples from the start of each split; 0 for no curvature"),
    "curvature.batch_size": Field(359, _COUNT, "examples per batch of a Hessian product"),
    "curvature.max_products": Field(40, _PRODUCTS, "largest number of Hessian products for lambda_max"),
    "curvature.tolerance": Field(1e-3, _FACTOR, "relative residual at which lambda_max is found"),
    "curvature.num_probes": Field(60, _PROBES, "Hessian products of a trace"),
    "curvature.trace_method": Field("hutch++", _choice("hutchinson", "hutch++", "xtrace"), "estimator of the trace"),
    "curvature.density_probes": Field(10, _DENSITY, "number of random vectors for the spectral density"),
    "curvature.density_steps": Field(
        40, _whole(1, _MOST_PRODUCTS), "Lanczos steps from each random vector of the spectral density"
    ),
    "curvature.every": Field(
        0, _FROM_0_WHOLE, "epochs between two measurements of lambda_max and trace in training; 0 for none"
    ),
    "diagnostics.every": Field(0, _FROM_0_WHOLE, "epochs between diagnostics of training; 0 for none"),
    "diagnostics.splits": Field(("train", "val"), _SPLITS, "splits on which training is diagnosed"),
    "diagnostics.examples": Field(0, _FROM_0_WHOLE, "examples of each split, evenly spaced; 0 for all"),
    "diagnostics.num_bins": Field(25, _BINS, "number of bins of the diagnostics' reliability diagrams"),
    "sweep.gamma": Field((), _AXIS, "values of loss.gamma to sweep"),
    "sweep.trace_penalty": Field((), _AXIS, "values of loss.trace_penalty to sweep"),
    "sweep.learning_rate": Field((), _AXIS, "values of optimizer.learning_rate to sweep"),
    "sweep.seed": Field((), _AXIS._replace(kind=int), "values of seed to sweep"),
    "sweep.at_once": Field(0, _FROM_0_WHOLE, "number of members of a sweep that train at once; 0 for the fastest"),
}
SECTIONS = (*dict.fromkeys(name.rpartition(".")[0] for name in FIELDS if "." in name), "model.options")
OPTIONS = "model.options."  # names that begin so are options of the network
_KINDS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "words"}
# sweep axis -> the field that it sets
SWEPT_FIELDS = {
    "gamma": "loss.gamma",
    "trace_penalty": "loss.trace_penalty",
    "learning_rate": "optimizer.learning_rate",
    "seed": "seed",
}


class Known(NamedTuple):
    """Names that some fields may hold, handed in by job: config imports no losses, networks or methods."""

    names: Mapping[str, Collection[str]]  # field -> names that it, or each of its elements, may hold
    losses_with_gamma: Collection[str]
    boundaries: Mapping[str, Sequence[float]]  # loss -> the epochs at which it changes gamma


def default_config() -> ConfigDict:
    """A new config with the default of every field. Its values are checked when a job begins, not when they are set."""
    return _nested({name: field.default for name, field in FIELDS.items()})


def _nested(values: Mapping[str, Any]) -> ConfigDict:
    tree: dict[str, Any] = {}
    for name, value in [*values.items(), *((section, {}) for section in SECTIONS)]:
        *sections, last = name.split(".")
        part = functools.reduce(lambda part, section: part.setdefault(section, {}), sections, tree)
        part.setdefault(last, {} if name in SECTIONS else value)
    return ConfigDict(tree, type_safe=False)


def _values(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a config by its dotted name; whatever is no section of the fields is a value."""
    for key in config:
        name = f"{prefix}{key}"
        try:
            value = config[key]
        except Exception as error:  # whatever the arithmetic of references raises
            raise InputError(f"config.{name} has no value: {_named(error)}") from error
        if name in SECTIONS and isinstance(value, ConfigDict):
            yield from _values(value, f"{name}.")
        else:
            yield name, value


def with_values(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A copy of the config with other values of these fields, by dotted name."""
    return _nested({**dict(_values(config)), **values})


def _named(error: BaseException) -> str:
    """The error as a message shows it: its type, and the first line of what it says."""
    said = shown(error, most=300).partition("\\n")[0].strip()
    return f"{type(error).__name__}: {said}".removesuffix(": ")


def describe(names: Mapping[str, Collection[str]], options: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all fields, a line for each: name, default, meaning, range.

    names: field -> the names that it may hold. options: network -> its options with their defaults.
    """
    lines = []
    for name, field in FIELDS.items():
        words = " ".join(names.get(name, ())) or re.sub("^(be|hold) ", "", field.range.words)
        lines.append(f"{name:<27} {field.default!s:<15} {field.meaning}{f' ({words})' if words else ''}")
    lines += ["", "The options of each network, with its own values:"]
    for network, defaults in options.items():
        lines.append(f"{network:<27} {', '.join(f'{name}={value}' for name, value in defaults.items())}".rstrip())
    return "\n".join(lines)


def is_field(name: str) -> bool:
    """Whether a value can be set under this dotted name. Every name in model.options counts, whatever the network."""
    return (
        name.removeprefix(OPTIONS).isidentifier()
        if name.startswith(OPTIONS)
        else name in FIELDS and name not in SECTIONS
    )


def _unknown(name: str) -> InputError:
    """The error that no field has this name, with the nearest."""
    section, _, last = shown(name).rpartition(".")
    names = list(filter(is_field, FIELDS))
    near = difflib.get_close_matches(shown(name), names, n=1, cutoff=0.75) or [
        *(field for field in names if field.endswith(f".{last}")),
        *([f"{OPTIONS}{last}"] if section == "model" else []),
    ]
    hint = f"did you mean config.{near[0]}?" if near else "python -m focalgeo.run --fields shows all"
    return InputError(f"no such config field: config.{shown(name)}; {hint}")


def _typed(name: str, value: Any) -> Any:
    """The value in its field's kind: a whole number for a float becomes a float, a list a tuple, NumPy's Python's own.

    Raises:
      InputError: it is of another kind.
    """
    value = _plain(value)
    # the kind of a network's option is known to the network's constructor
    range_ = FIELDS[name].range if name in FIELDS else Range(object, many=isinstance(value, tuple), optional=True)
    kinds = {float: (int, float), object: (bool, int, float, str, type(None))}.get(range_.kind, (range_.kind,))
    parts = value if range_.many and isinstance(value, tuple) else (value,)
    right = all(isinstance(part, kinds) and (bool in kinds or not isinstance(part, bool)) for part in parts)
    if (value is None and range_.optional) or (right and range_.many == isinstance(value, tuple)):
        is_float = range_.kind is float and not range_.many and abs(value) < _LARGEST
        return float(value) if is_float else value
    words = f"be of {_KINDS.get(range_.kind, 'numbers, words, true or false')}"
    raise InputError(f"config.{name} is {shown(value)}: it must {words}{' or None' if range_.optional else ''}")


def _plain(value: Any) -> Any:
    """The value, or each of a list, as Python's own; 0 for -0."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, tuple | list | range):
        return tuple(map(_plain, value))
    return value + 0.0 if isinstance(value, float) else value


def load_config(file: str | Path, words: str = "") -> ConfigDict:
    """The config that a config file's `get_config` gives for `words`, which may also follow `file` after a colon.

    The file may import the others of its folder by the folder's name (`from configs import digits`), wherever the
    folder lies, and from a folder of another name focalgeo's own, as configs. Where there is no configs/digits.py, that
    of focalgeo is taken.

    Raises:
      InputError: there is no such file, it has no get_config, or its code raised, with the line.
    """
    file, _, after_colon = str(file).partition(":")
    words, path = words or after_colon, Path(expanded(file))
    shipped = _folder().parent / path
    if path.parts[:1] == ("configs",) and not os.path.exists(path) and os.path.exists(shipped):
        path = shipped
    if not os.path.isfile(path):  # nor a pipe, which would be waited for
        near = difflib.get_close_matches(path.name, own_configs(), n=1)
        hint = f"did you mean configs/{near[0]}?" if near else "--config names a Python file, as configs/digits.py"
        raise InputError(f"no config file: {shown(repr(file))}; {hint}")
    search, sys.path = sys.path, [str(path.resolve().parent.parent), *sys.path, str(_folder().parent)]
    try:
        with warnings.catch_warnings(action="ignore"):
            get_config = runpy.run_path(str(path)).get("get_config", lambda *words: None)
            config = get_config(*filter(None, [words]))
    except InputError:
        raise
    except BaseException as error:  # SystemExit too: the file ends no job that has not begun
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f", line {lines[-1]}" if lines else ""
        raise InputError(f"{shown(file)}{where}: {_named(error)}") from error
    finally:
        sys.path = search
    if not isinstance(config, ConfigDict):
        begin = "begin with focalgeo.config.default_config()"
        raise InputError(f"{shown(file)} has no get_config that returns a config: {begin}")
    return config


def _folder() -> Path:
    """The folder of focalgeo's own configs: in a clone beside the package, in a wheel packed into it."""
    package = Path(__file__).resolve().parent
    packed = package / "shipped" / "configs"
    return packed if packed.is_dir() else package.parent / "configs"


def own_configs() -> dict[str, str]:
    """File name -> first line of its docstring, of focalgeo's own configs."""
    files = sorted(path for path in _folder().glob("*.py") if path.stem != "__init__")
    return {path.name: ast.get_docstring(ast.parse(path.read_bytes())).partition("\n")[0] for path in files}


def chosen(words: str, file: str, kinds: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The word of each kind that `words` names, as in "quick,fl3"; a kind that is not named is left out.

    file: the config file's own __file__, for the message.

    Raises:
      InputError: a word of no kind, with the nearest one, or two words of one kind.
    """
    kind_of = {name: kind for kind, names in kinds.items() for name in names}
    by_kind: dict[str, str] = {}
    for word in filter(None, map(str.strip, words.split(","))):
        if word not in kind_of:
            raise InputError.of_choice(f"the word behind {Path(file).name}", word, kind_of)
        if by_kind.setdefault(kind_of[word], word) != word:
            raise InputError(f"{Path(file).name} is given {by_kind[kind_of[word]]!r} and {word!r}: name one of them")
    return by_kind


def parse_arguments(arguments: Sequence[str], flags: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of fields, by --config.NAME=VALUE, and of the flags, whose names `flags` gives each with an example.

    Each is given once at most, as --NAME=VALUE or --NAME VALUE. A tuple is written as Python writes it or as its
    elements between commas. ~ at the beginning of a flag's value is the home folder.

    Raises:
      InputError: no field or flag has that name, with the nearest; no value, or two; or a value of another kind.
    """
    values, texts, rest = {}, {}, iter(arguments)
    for argument in rest:
        matched = re.fullmatch(r"--?([^-=][^=]*)(?:=(.*))?", argument, re.DOTALL)
        if matched is None:
            raise InputError(f"unknown argument {shown(repr(argument))}: fields are set as --config.loss.gamma=3")
        name, text = matched.groups()
        _, is_config, field = name.partition("config.")
        if is_config and not is_field(field):
            raise _unknown(field)
        if not is_config and name not in flags:
            raise InputError.of_choice("the flag", shown(name), flags)
        if name in texts:
            raise InputError(f"--{name} is given twice: give it once")
        text = next(rest, "") if text is None else text
        if not text or text.startswith("--"):
            raise InputError(f"--{name} has no value: give one, as --{name}={flags.get(name, 'VALUE')}")
        texts[name] = text
        if is_config:
            values[field] = _parsed(field, text)
    return values, {name: expanded(texts[name]) for name in flags if name in texts}


def _parsed(name: str, text: str) -> Any:
    range_ = FIELDS[name].range if name in FIELDS else Range(object)
    value = {"true": True, "false": False, "none": None}.get(text.lower(), text)
    if value is text and (range_.many or range_.kind is not str):
        try:
            with warnings.catch_warnings(action="ignore"):  # of an escape that Python does not know, say
                value = ast.literal_eval(text)
        except (SyntaxError, TypeError, ValueError, MemoryError, RecursionError):
            pass
    elif range_.kind is str and not (range_.optional and value is None):
        value = text
    if range_.many and not isinstance(value, tuple | list | dict | set):
        words = isinstance(value, str)
        value = tuple(filter(None, map(str.strip, value.strip("()[]").split(",")))) if words else (value,)
    return _typed(name, value)


def _contradictions(c: ConfigDict, known: Known) -> Iterator[str]:
    """What does not hold between fields, one line each."""
    loss, optimizer, start = c.loss, c.optimizer, c.start
    # the numbers between which loss.gammas lie, and the epochs at which the loss changes gamma
    steps = {"sample_dependent_focal_loss": loss.thresholds, "scheduled_focal_loss": loss.boundaries}
    limits = {**known.boundaries, "scheduled_focal_loss": loss.boundaries}.get(loss.name, ())
    members = math.prod(map(len, axes(c).values()))
    pairs = len(c.evaluation.gammas) * round(c.evaluation.max_temperature / c.evaluation.temperature_step)
    if pairs > MOST_PAIRS:
        yield (
            f"evaluation asks for a grid of more than {MOST_PAIRS:,} pairs of gamma and temperature: raise "
            "temperature_step, or lower max_temperature"
        )
    if optimizer.schedule == "cosine" and optimizer.warmup_epochs >= optimizer.epochs:
        yield "optimizer.warmup_epochs leaves no epoch to train: it must be below optimizer.epochs"
    if loss.trace_examples > optimizer.batch_size:
        yield f"loss.trace_examples is {loss.trace_examples}: it must be at most optimizer.batch_size"
    if loss.gamma < 0 and loss.name != "signed_focal_loss":
        yield f"loss.gamma is {loss.gamma}: it must be 0 or more (only signed_focal_loss goes below)"
    if optimizer.sam_adaptive and not optimizer.sam_radius:
        yield "optimizer.sam_adaptive is true, sam_radius is 0: set a radius, as 0.5"
    if start.run is None and (start.step is not None or start.modules or start.optimizer == "kept"):
        yield "start.run is None: name the workdir that training starts from, or leave start out"
    if start.modules and start.optimizer == "kept":
        yield "start.optimizer is kept: with start.modules set it must be fresh"
    if len(loss.gammas) != len(steps.get(loss.name, loss.gammas[1:])) + 1:
        yield f"loss.gammas must hold one value more than the thresholds or boundaries of {loss.name}"
    if limits and limits[0] >= optimizer.epochs:
        yield (
            f"loss.name {loss.name} changes gamma after the last of {optimizer.epochs} epochs: train longer, or "
            "set loss.name=scheduled_focal_loss with boundaries and gammas of your own"
        )
    if c.sweep.gamma and loss.name not in known.losses_with_gamma:
        yield f"sweep.gamma is given, but config.loss.name {loss.name} has no gamma: choose focal_loss"
    if members > MOST_MEMBERS:
        yield f"sweep has more than {MOST_MEMBERS:,} members, each measured on its own: run several sweeps"
    if axes(c) and c.sweep.at_once and members % c.sweep.at_once:
        yield f"sweep.at_once is {c.sweep.at_once}: it must divide the number of members"


def check(config: ConfigDict, known: Known) -> FrozenConfigDict:
    """Check a config and return it frozen, whole numbers of float fields as floats and lists as tuples.

    Raises:
      InputError: the first field that does not exist, is missing or is out of its range, with the range; or fields that
        contradict each other. Of a sweep each member is checked.
    """
    values = dict(_values(config))
    for name in values:
        if not is_field(str(name)):
            raise _unknown(str(name))
    for name in FIELDS:
        if name not in values and name not in SECTIONS:
            raise InputError(f"config.{name} is missing: start from focalgeo.config.default_config()")
    config = _nested({name: _typed(name, value) for name, value in values.items()})
    _check_values(config, known)
    for values in combinations(config) if axes(config) else ():
        try:
            _check_values(member_config(config, values), known)
        except InputError as error:
            raise InputError(f"config.sweep, member {member_name(values)}: {error}") from error
    return FrozenConfigDict(config)


def _check_values(config: ConfigDict, known: Known) -> None:
    for name, value in _values(config):
        range_ = FIELDS[name].range if name in FIELDS else Range(object)
        if value is not None and not range_.holds(value):
            raise InputError(f"config.{name} is {shown(value)}: it must {range_.words}")
        for word in () if name not in known.names else value if range_.many else (value,):
            if word not in known.names[name]:
                raise InputError.of_choice(f"config.{name}", word, known.names[name])
    for contradiction in _contradictions(config, known):
        raise InputError(f"config.{contradiction}")


def axes(config) -> dict[str, tuple]:
    """The axes that config.sweep names, in the order of SWEPT_FIELDS, with their values."""
    kinds = {name: int if name == "seed" else float for name in SWEPT_FIELDS}
    return {name: tuple(map(kinds[name], config.sweep[name])) for name in SWEPT_FIELDS if len(config.sweep[name])}


def combinations(config) -> list[dict[str, Any]]:
    """Each member's values on the axes, the last axis fastest; [{}] without axes."""
    swept = axes(config)
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def member_config(config, values: Mapping[str, Any]) -> ConfigDict:
    """The config of the member with these values on the axes, as a job without a sweep has it."""
    alone = {f"sweep.{axis}": () for axis in SWEPT_FIELDS}
    return with_values(config, alone | {SWEPT_FIELDS[axis]: value for axis, value in values.items()})


def member_name(values: Mapping[str, Any]) -> str:
    """A member's name by its values on the axes, as "gamma=0.5,seed=1"; "" without axes."""
    return ",".join(f"{axis}={repr(value).removesuffix('.0')}" for axis, value in values.items())
