"""The config of a job: every field once, with default, range and meaning; how it is read, checked and printed. No jax.

A config file's `get_config` starts from `default_config()` and sets what differs. `--config.NAME=VALUE` sets a field on
the command line, and `python -m focalgeo.run --fields` prints them all.
"""

import ast
import contextlib
import difflib
import itertools
import json
import math
import os
import re
import runpy
import sys
import traceback
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from ml_collections import ConfigDict, FrozenConfigDict
from msgspec import Meta

from focalgeo import types
from focalgeo.types import InputError, shown


class Field(NamedTuple):
    """One field of the config."""

    name: str
    default: Any
    kind: Any  # a type as msgspec reads it, with its range
    meaning: str


# float32 holds 3e38, and 1e-38 as well as 1: what a network makes of a value has room within these
_LARGEST, _SMALLEST = 1e30, 1e-30
_INT32 = 2**31 - 1  # JAX counts in int32
MOST_MEMBERS = 1000  # each is measured on its own
_MOST_PRODUCTS = 10_000  # each is a pass over all examples


def _whole(least: int, most: int = _INT32):
    return Annotated[int, Meta(ge=least, le=most)]


def _number(least: float, most: float):
    return Annotated[float, Meta(ge=least, le=most)]


_WHOLE, _COUNT = _whole(0), _whole(1)
_SIZE = _COUNT | None
_FROM_0 = _number(0, _LARGEST)
_PIXEL = _number(1e-6, 1e6)
_SHARE = Annotated[float, Meta(ge=0, lt=1)]
_FACTOR = _number(_SMALLEST, 1)
_RATE = _number(_SMALLEST, _LARGEST)
_GAMMA = _number(-100, 100)
_EPOCHS = tuple[_number(_SMALLEST, _INT32), ...]
_NAMES = tuple[str, ...]
_SPLITS = Annotated[tuple[Literal["train", "val", "test"], ...], Meta(min_length=1)]
_BINS = _whole(1, types.MOST_BINS)
_OPTION = bool | int | float | str | tuple[bool | int | float | str | None, ...] | None  # the network knows more
_CALIBRATION_GAMMAS = (-0.5, -0.25, 0.0, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)

# The defaults are the job of configs/digits.py, which needs no download. What no type says stands in `_contradictions`.
_TABLE = (
    ("seed", 0, _WHOLE, "seed of initial weights, order, augmentation, dropout, random vectors and bootstrap"),
    ("data.name", "digits", str, "name of the data set, with its path after a colon (docs/reference.md)"),
    ("data.label", None, str | None, "column of a table that holds the classes"),
    ("data.split_seed", 1, _WHOLE, "seed of subsets, and of the splits that the data set does not come with"),
    ("data.train_size", None, _SIZE, "number of training examples; None for all"),
    ("data.val_size", None, _SIZE, "number of validation examples, by which everything is chosen; None for all"),
    ("data.test_size", None, _SIZE, "number of test examples, by which nothing is chosen; None for all"),
    ("data.image_size", None, _whole(1, 1024) | None, "height and width of the resized images; None for their own"),
    ("data.max_words", None, _SIZE, "size of the vocabulary, which is the most frequent words; None for all"),
    (
        "data.max_length",
        None,
        _SIZE,
        "number of words read from the start of each document; None for the data set's own",
    ),
    ("data.embeddings", None, str | None, "file of the word vectors that training begins with; None for random ones"),
    ("data.augment", "none", str, "random augmentation of the training images"),
    ("data.scale", 16.0, _PIXEL, "largest pixel value; pixels are divided by it first"),
    (
        "data.mean",
        (0.305,),
        Annotated[tuple[_number(-1e6, 1e6), ...], Meta(min_length=1)],
        "mean of each channel, subtracted after the division by scale",
    ),
    (
        "data.std",
        (0.376,),
        Annotated[tuple[_PIXEL, ...], Meta(min_length=1)],
        "standard deviation of each channel, by which the difference is divided",
    ),
    ("model.name", "mlp", str, "name of the network"),
    ("model.dtype", "float32", Literal["float32", "bfloat16"], "dtype of layers; parameters, logits are float32"),
    (
        "model.precision",
        "default",
        Literal["default", "high", "highest"],
        "bits of float32 products in training: a TPU's default is bfloat16, a GPU's may be TF32; measurements use all",
    ),
    ("loss.name", "focal_loss", str, "name of the loss (docs/reference.md)"),
    ("loss.gamma", 3.0, _GAMMA, "gamma of the focal losses and the confidence penalty"),
    ("loss.smoothing", 0.05, _SHARE, "smoothing of label_smoothed_cross_entropy"),
    (
        "loss.thresholds",
        (0.2,),
        tuple[Annotated[float, Meta(gt=0, lt=1)], ...],
        "probabilities at which sample_dependent_focal_loss changes gamma",
    ),
    ("loss.boundaries", (100, 250), _EPOCHS, "epochs at which scheduled_focal_loss changes gamma"),
    (
        "loss.gammas",
        (5.0, 3.0),
        tuple[_number(0, 100), ...],
        "gammas between the thresholds or boundaries, one more than those",
    ),
    ("loss.penalty_weight", 2.0, _FROM_0, "weight of the kernel penalty of mmce and weighted_mmce"),
    ("loss.alpha", (), tuple[_FROM_0, ...], "weight of each class; () for 1"),
    ("loss.trace_penalty", 0.0, _FROM_0, "weight of the trace of the batch's cross-entropy Hessian; 0 for none"),
    ("loss.trace_target", 0.0, _FROM_0, "trace on train to which that weight is steered, by epochs; 0 for none"),
    ("loss.trace_bound", 0.0, _FROM_0, "largest size of a steered weight, which may be negative"),
    (
        "loss.trace_of",
        "hessian",
        Literal["hessian", "gauss_newton", "scale_free"],
        "matrix whose trace is the penalty; scale_free has the elements theta_i H_ij theta_j",
    ),
    ("loss.trace_examples", 0, _WHOLE, "examples of a batch, on all devices, that the trace is of; 0 for all"),
    (
        "loss.trace_form",
        "jvp_of_grad",
        Literal["jvp_of_grad", "jvp_of_jvp"],
        "how the trace penalty is differentiated: one number by both; jvp_of_jvp takes less time with convolutions",
    ),
    ("optimizer.name", "sgd", str, "name of the optimiser"),
    ("optimizer.learning_rate", 0.1, _RATE, "highest learning rate of the schedule"),
    ("optimizer.momentum", 0.9, _SHARE, "momentum of sgd"),
    ("optimizer.nesterov", False, bool, "use Nesterov's form of momentum"),
    ("optimizer.weight_decay", 5e-4, _FROM_0, "multiple of the parameters that is added to the gradient"),
    ("optimizer.reduction", "mean", Literal["mean", "sum"], "reduction of a batch's losses, then minimised"),
    ("optimizer.clip_norm", 0.0, _FROM_0, "largest norm of the gradient; 0 for any"),
    ("optimizer.sam_radius", 0.0, _FROM_0, "radius of sharpness-aware minimisation; 0 for none"),
    ("optimizer.sam_adaptive", False, bool, "measure that radius by each parameter's size, as ASAM does"),
    ("optimizer.batch_size", 64, _COUNT, "training examples per step, on all devices of all processes together"),
    ("optimizer.epochs", 60, _COUNT, "number of passes over the training examples"),
    ("optimizer.schedule", "steps", Literal["steps", "cosine"], "schedule of the learning rate"),
    ("optimizer.decay_epochs", (40, 50), _EPOCHS, "epochs after which the schedule steps lowers the learning rate"),
    ("optimizer.decay_factor", 0.1, _FACTOR, "factor of the learning rate at each of decay_epochs"),
    ("optimizer.warmup_epochs", 0, _WHOLE, "first epochs, in which the schedule cosine raises the learning rate"),
    (
        "optimizer.select",
        "last",
        Literal["last", "best_val"],
        "epoch whose parameters are kept: the last, or the most accurate on val",
    ),
    (
        "start.run",
        None,
        str | None,
        "workdir of the run from whose checkpoint training starts; None for random weights",
    ),
    ("start.step", None, _SIZE, "step of that checkpoint; None for the newest"),
    ("start.modules", (), _NAMES, "parts of the network that are taken from there; () for all"),
    (
        "start.optimizer",
        "fresh",
        Literal["fresh", "kept"],
        "state of the optimiser: fresh, or its momentum or moments kept from there",
    ),
    ("log_every", 20, _COUNT, "number of steps between two rows of the training loss"),
    ("checkpoint.every", 200, _COUNT, "number of steps between two checkpoints"),
    ("checkpoint.keep", 3, _whole(2), "number of checkpoints that are kept; older ones are deleted"),
    ("evaluation.batch_size", 512, _COUNT, "examples per call of the network in evaluation"),
    ("evaluation.num_bins", 15, _BINS, "number of bins of ECE and of reliability diagrams"),
    ("evaluation.methods", (), _NAMES, "calibration methods beside uncalibrated; () for the usual"),
    ("evaluation.criteria", types.DEFAULT_CRITERIA, _NAMES, "criteria by which methods are fitted"),
    ("evaluation.metrics", types.DEFAULT_METRICS, _NAMES, "calibration metrics measured"),
    (
        "evaluation.gammas",
        _CALIBRATION_GAMMAS,
        tuple[Annotated[float, Meta(gt=-1, le=100)], ...],
        "grid of the focal calibration map's gamma; 0 is plain temperature scaling",
    ),
    ("evaluation.temperature_step", 0.01, _number(1e-3, 1), "first temperature of the calibration grid, and its step"),
    ("evaluation.max_temperature", 5.0, _number(1, 1000), "last temperature of the calibration grid"),
    ("evaluation.num_resamples", 1000, _whole(2, types.MOST_RESAMPLES), "number of resamples of the bootstrap"),
    ("curvature.splits", ("val",), _SPLITS, "splits on which curvature is measured"),
    ("curvature.examples", 359, _WHOLE, "examples from the start of each split; 0 for no curvature"),
    ("curvature.batch_size", 359, _COUNT, "examples per batch of a Hessian product"),
    ("curvature.max_products", 40, _whole(2, _MOST_PRODUCTS), "largest number of Hessian products for lambda_max"),
    ("curvature.tolerance", 1e-3, _FACTOR, "relative residual at which lambda_max is found"),
    ("curvature.num_probes", 60, _whole(4, _MOST_PRODUCTS), "Hessian products of a trace"),
    ("curvature.trace_method", "hutch++", Literal["hutchinson", "hutch++", "xtrace"], "estimator of the trace"),
    ("curvature.density_probes", 10, _whole(0, 1000), "number of random vectors for the spectral density"),
    (
        "curvature.density_steps",
        40,
        _whole(1, _MOST_PRODUCTS),
        "Lanczos steps from each random vector of the spectral density",
    ),
    ("curvature.every", 0, _WHOLE, "epochs between two measurements of lambda_max and trace in training; 0 for none"),
    ("curvature.sharpness", False, bool, "measure adaptive sharpness, Fisher-Rao norm and the noise that a loss bears"),
    ("diagnostics.every", 0, _WHOLE, "epochs between diagnostics of training; 0 for none"),
    ("diagnostics.splits", ("train", "val"), _SPLITS, "splits on which training is diagnosed"),
    ("diagnostics.examples", 0, _WHOLE, "examples of each split, evenly spaced; 0 for all"),
    ("diagnostics.num_bins", 25, _BINS, "number of bins of the diagnostics' reliability diagrams"),
    ("sweep.at_once", 0, _WHOLE, "number of members of a sweep that train at once; 0 for the fastest"),
)
OPTIONS = "model.options."  # names that begin so are options of the network
# sweep axis -> the field that it sets
SWEPT_FIELDS = {
    "gamma": "loss.gamma",
    "trace_penalty": "loss.trace_penalty",
    "trace_target": "loss.trace_target",
    "learning_rate": "optimizer.learning_rate",
    "weight_decay": "optimizer.weight_decay",
    "seed": "seed",
}
_AXES = {f"sweep.{axis}": field for axis, field in SWEPT_FIELDS.items()}
FIELDS = {field.name: field for field in map(Field._make, _TABLE)}
FIELDS |= {
    name: Field(name, (), tuple[FIELDS[field].kind, ...], f"values of {field} to sweep")
    for name, field in _AXES.items()
}


class Known(NamedTuple):
    """Names that some fields may hold, handed in by job: config imports no losses, networks or methods."""

    names: Mapping[str, Collection[str]]  # field -> names that it, or each of its elements, may hold
    losses_with_gamma: Collection[str]
    boundaries: Mapping[str, Sequence[float]]  # loss -> the epochs at which it changes gamma


def default_config() -> ConfigDict:
    """A new config with the default of every field. Its values are checked when a job begins, not when they are set."""
    tree = {}
    for field in FIELDS.values():
        section, _, last = field.name.rpartition(".")
        (tree.setdefault(section, {}) if section else tree)[last] = field.default
    tree["model"]["options"] = {}
    return ConfigDict(tree, type_safe=False)


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested dictionaries by their dotted names."""
    for key, value in tree.items():
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(f"{prefix}{key}", value)]


def with_values(config: ConfigDict, values: Mapping[str, Any]) -> ConfigDict:
    """A copy of the config with other values of these fields, by dotted name; what it lacks has its default.

    Raises:
      InputError: it has a field that does not exist, with the nearest, or one without a value.
    """
    try:
        values = {**dict(flat(config.to_dict())), **values}
    except Exception as error:  # whatever the arithmetic of references raises
        raise InputError(f"the config has a field without a value: {shown(error)}") from error
    for name in values:
        _check_name(name)
    changed = default_config()
    changed.update_from_flattened_dict(values)
    return changed


def describe(names: Mapping[str, Collection[str]], options: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all fields, a line for each: name, default, meaning, range.

    names: field -> the names that it may hold. options: network -> its options with their defaults.
    """
    lines = [
        f"{name:<27} {default!s:<15} {meaning} ({' '.join(names.get(name, ())) or _range(kind)})"
        for name, default, kind, meaning in FIELDS.values()
    ]
    lines += ["", "The options of each network, with its own values:"]
    lines += [
        f"{network:<27} {', '.join(f'{name}={value}' for name, value in defaults.items())}".rstrip()
        for network, defaults in options.items()
    ]
    return "\n".join(lines)


def _range(kind) -> str:
    """A type as its JSON schema has it: "integer, minimum 1, maximum 1024, null"."""
    return re.sub('"(type|anyOf|enum|items)": |[][{}":]', "", json.dumps(msgspec.json.schema(kind)))


def _check_name(name: str) -> None:
    """Refuse a dotted name that no field has, with the nearest. Every name in model.options counts, of any network."""
    if name in FIELDS or (name.startswith(OPTIONS) and name.removeprefix(OPTIONS).isidentifier()):
        return
    near = difflib.get_close_matches(shown(name), FIELDS, n=1, cutoff=0.75) or [
        field for field in FIELDS if field.endswith(f".{name.rpartition('.')[2]}")
    ]
    hint = f"did you mean config.{near[0]}?" if near else "python -m focalgeo.run --fields shows all"
    raise InputError(f"no such config field: config.{shown(name)}; {hint}")


def _typed(name: str, value):
    """The value in its field's kind: a whole number for a float becomes a float, a list a tuple, NumPy's Python's own.

    Raises:
      InputError: it is of another kind, or out of range.
    """
    kind = FIELDS[name].kind if name in FIELDS else _OPTION
    try:
        return msgspec.convert(_plain(value), kind)
    except (msgspec.ValidationError, UnicodeError) as error:
        value = repr(value) if isinstance(value, str) else value
        raise InputError(f"config.{name} is {shown(value)}: give {_range(kind)}") from error


def _plain(value):
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
      InputError: there is no such file, its code fails, with the line, or it has no get_config.
    """
    file, _, after_colon = str(file).partition(":")
    path = Path(os.path.expanduser(file))
    if path.parts[:1] == ("configs",) and not path.exists():
        path = _folder() / path.name
    if not os.path.isfile(path):  # nor a pipe, which would be waited for
        raise InputError.of_choice("the config file", shown(file), [f"configs/{name}" for name in own_configs()])
    search, sys.path = sys.path, [str(path.resolve().parent.parent), *sys.path, str(_folder().parent)]
    try:
        with warnings.catch_warnings(action="ignore"):
            get_config = runpy.run_path(str(path)).get("get_config", lambda *words: None)
            config = get_config(*filter(None, [words or after_colon]))
    except InputError:
        raise
    except (Exception, SystemExit) as error:
        # the last line of the file itself, whatever it called; a SyntaxError, which ran none, has its own
        places = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = getattr((places or [error])[-1], "lineno", None)
        raise InputError(f"{shown(file)}, line {line}: {type(error).__name__}: {shown(error, most=200)}") from error
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
    files = sorted(_folder().glob("[!_]*.py"))
    return {path.name: ast.get_docstring(ast.parse(path.read_bytes())).partition("\n")[0] for path in files}


def chosen(words: str, file: str, kinds: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The word of each kind that `words` names, as in "quick,fl3"; a kind that is not named is left out.

    file: the config file's own __file__, for the message.

    Raises:
      InputError: a word of no kind, with the nearest one, or two words of one kind.
    """
    kind_of = {name: kind for kind, names in kinds.items() for name in names}
    by_kind = {}
    for word in filter(None, map(str.strip, words.split(","))):
        if word not in kind_of:
            raise InputError.of_choice(f"the word behind {Path(file).name}", word, kind_of)
        if by_kind.setdefault(kind_of[word], word) != word:
            raise InputError(f"{Path(file).name} is given {by_kind[kind_of[word]]!r} and {word!r}: name one of them")
    return by_kind


def parse_arguments(arguments: Sequence[str], flags: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of fields, by --config.NAME=VALUE, and of the flags, whose names `flags` gives each with an example.

    Each is given once at most, as --NAME=VALUE or --NAME VALUE; a flag's - may be _. A tuple is written as Python
    writes it or as its elements between commas. ~ at the beginning of a flag's value is the home folder.

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
        if is_config:
            _check_name(field)
        elif (name := name.replace("_", "-")) not in flags:
            raise InputError.of_choice("the flag", shown(name), flags)
        if name in texts:
            raise InputError(f"--{name} is given twice: give it once")
        text = next(rest, "") if text is None else text
        if not text or text.startswith("--"):
            raise InputError(f"--{name} has no value: give one, as --{name}={flags.get(name, 'VALUE')}")
        texts[name] = text
        if is_config:
            values[field] = _parsed(field, text)
    return values, {name: os.path.expanduser(texts[name]) for name in flags if name in texts}


def _parsed(name: str, text: str):
    """The text as the field's value: what it writes in Python, itself, or its words between commas."""
    literal = text
    with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):  # of an unknown escape, say
        literal = ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text.lower(), text))
    words = tuple(filter(None, map(str.strip, text.strip("()[]").split(","))))
    # a name may look like a number, and one element without a comma is no tuple in Python: the field's kind decides
    for value in (literal, text, words if literal is text else (literal,)):
        with contextlib.suppress(InputError):
            return _typed(name, value)
    return _typed(name, literal)  # which says what is wrong


def _contradictions(c: ConfigDict, known: Known) -> Iterator[str]:
    """What does not hold within tuples and between fields, one line each."""
    loss, optimizer, start, evaluation = c.loss, c.optimizer, c.start, c.evaluation
    for name, values in flat(c.to_dict()):
        if name in ("loss.thresholds", "loss.boundaries", "evaluation.gammas") and [*values] != sorted({*values}):
            yield f"{name} is {shown(values)}: it must ascend"
        if name in ("curvature.splits", "diagnostics.splits", *_AXES) and len({*values}) < len(values):
            yield f"{name} is {shown(values)}: it must hold each value once"
    if 0 not in evaluation.gammas:
        yield "evaluation.gammas must hold 0, the plain temperature scaling to compare with"
    # so that T = 1, which changes nothing, is on the grid
    if abs(round(1 / evaluation.temperature_step) * evaluation.temperature_step - 1) > 1e-6:
        yield f"evaluation.temperature_step is {evaluation.temperature_step}: it must be 1/2, 1/100 ... or 1/1000"
    if loss.alpha and not any(loss.alpha):
        yield "loss.alpha must hold a weight above 0"
    if c.curvature.density_probes == 1:
        yield "curvature.density_probes is 1: it must be 0 (no density), or 2 or more"
    # the numbers between which loss.gammas lie, and the epochs at which the loss changes gamma
    steps = {"sample_dependent_focal_loss": loss.thresholds, "scheduled_focal_loss": loss.boundaries}
    limits = {**known.boundaries, "scheduled_focal_loss": loss.boundaries}.get(loss.name, ())
    members = math.prod(map(len, axes(c).values()))
    pairs = len(evaluation.gammas) * round(evaluation.max_temperature / evaluation.temperature_step)
    if pairs > types.MOST_PAIRS:
        yield (
            f"evaluation asks for a grid of more than {types.MOST_PAIRS:,} pairs of gamma and temperature: raise "
            "temperature_step, or lower max_temperature"
        )
    if optimizer.schedule == "cosine" and optimizer.warmup_epochs >= optimizer.epochs:
        yield "optimizer.warmup_epochs leaves no epoch to train: it must be below optimizer.epochs"
    if loss.trace_examples > optimizer.batch_size:
        yield f"loss.trace_examples is {loss.trace_examples}: it must be at most optimizer.batch_size"
    if loss.trace_target and not loss.trace_penalty <= loss.trace_bound > 0:
        yield f"loss.trace_bound is {loss.trace_bound}: with a target it must be above 0, at least loss.trace_penalty"
    if loss.trace_target and not c.curvature.examples:
        yield "curvature.examples is 0: loss.trace_target is of so many examples of train, set 1 or more"
    if c.curvature.sharpness and not c.curvature.examples:
        yield "curvature.examples is 0: curvature.sharpness is of so many examples, set 1 or more"
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
      InputError: the first field that does not exist or is out of its range, with the range; or fields that contradict
        each other. Of a sweep each member is checked.
    """
    values = {name: _typed(name, value) for name, value in flat(with_values(config, {}).to_dict())}
    for name, choices in known.names.items():
        for word in values[name] if isinstance(values[name], tuple) else (values[name],):
            if word not in choices:
                raise InputError.of_choice(f"config.{name}", word, choices)
    config = with_values(config, values)
    if config.loss.trace_bound and not any((config.loss.trace_target, *config.sweep.trace_target)):
        raise InputError("config.loss.trace_bound is of a steered weight: set config.loss.trace_target, or no bound")
    runs = {"": config}
    runs |= {f"config.sweep, member {member_name(at)}: ": member_config(config, at) for at in combinations(config)}
    for where, run in runs.items():
        for contradiction in _contradictions(run, known):
            raise InputError(f"{where}config.{contradiction}")
    return FrozenConfigDict(config)


def axes(config) -> dict[str, tuple]:
    """The axes that config.sweep names, in the order of SWEPT_FIELDS, with their values."""
    return {name: tuple(config.sweep[name]) for name in SWEPT_FIELDS if config.sweep.get(name)}


def combinations(config) -> list[dict[str, Any]]:
    """Each member's values on the axes, the last axis fastest; [{}] without axes."""
    swept = axes(config)
    return [dict(zip(swept, values, strict=True)) for values in itertools.product(*swept.values())]


def member_config(config, values: Mapping[str, Any]) -> ConfigDict:
    """The config of the member with these values on the axes, as a job without a sweep has it."""
    return with_values(config, dict.fromkeys(_AXES, ()) | {SWEPT_FIELDS[axis]: values[axis] for axis in values})


def member_name(values: Mapping[str, Any]) -> str:
    """A member's name by its values on the axes, as "gamma=0.5,seed=1"; "" without axes."""
    return ",".join(f"{axis}={repr(value).removesuffix('.0')}" for axis, value in values.items())
