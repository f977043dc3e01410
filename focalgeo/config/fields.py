"""The table of all config fields: default, range and meaning of each."""

import difflib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from focalgeo.types import DEFAULT_CRITERIA, DEFAULT_METRICS, MOST_BINS, MOST_RESAMPLES, InputError, shown


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


def _number(least: float, most: float, words: str = "") -> Range:
    return Range(float, lambda value: least <= value <= most, words or f"be a number from {least:g} to {most:g}")


def _choice(*names: str) -> Range:
    return Range(str, lambda value: value in names, f"be {', '.join(names[:-1])} or {names[-1]}")


def _or_none(range_: Range, instead: str) -> Range:
    return range_._replace(words=f"{range_.words}, or None for {instead}", optional=True)


def _each(holds: Callable[[float], bool], words: str, *, least: int = 0, ascending: bool = False) -> Range:
    def all_hold(values: Sequence[float]) -> bool:
        in_order = not ascending or list(values) == sorted(set(values))
        return len(values) >= least and all(map(holds, values)) and in_order

    return Range(float, all_hold, words, many=True)


def _axis(kind: type, words: str) -> Range:
    def once(values: Sequence[float]) -> bool:
        return len(set(values)) == len(values) and all(abs(each) <= _LARGEST for each in values)

    return Range(kind, once, f"hold {words}, each once", many=True)


def _are_splits(values: Sequence[str]) -> bool:
    return len(set(values)) == len(values) > 0 and set(values) <= {"train", "val", "test"}


_TEXT = Range(str)
_COUNT = _whole(1)
_SIZE = _or_none(_COUNT, "all there are")
_PATH = _or_none(Range(str, words="be a path"), "random ones")
_RUN = _or_none(Range(str, words="be a path"), "random weights")
_NEWEST = _or_none(_COUNT, "the newest")
_WORDS = _or_none(_COUNT, "the data set's own")
# all images stay in memory: a thousand of the largest take 3 GB
_IMAGE_SIZE = _or_none(_whole(1, 1024), "the images' own")
_SEED = Range(int, lambda value: 0 <= value <= _INT32, "be 0 or more and below 2^31")
_FROM_0 = _number(0, _LARGEST, "be a finite number, 0 or more, at most 1e30")
_RATE = _number(_SMALLEST, _LARGEST, "be a finite number greater than 0, from 1e-30 to 1e30")
_PIXEL = _number(1e-6, 1e6, "be from 1e-6 to 1e6")
_SHARE = Range(float, lambda value: 0 <= value < 1, "be at least 0 and below 1")
_FACTOR = _number(_SMALLEST, 1, "be above 0 (from 1e-30) and at most 1")
_STEP = Range(
    float,
    lambda value: 1e-3 <= value <= 1 and abs(round(1 / value) * value - 1) < 1e-6,
    "be 1/2, 1/100 ... or 1/1000, the smallest whose grid is searched in seconds",
)
_MEAN = _each(lambda each: abs(each) <= 1e6, "hold finite numbers, at most 1e6", least=1)
_STD = _each(lambda each: 1e-6 <= each <= 1e6, "hold finite numbers above 0, from 1e-6 to 1e6", least=1)
_THRESHOLDS = _each(lambda each: 0 < each < 1, "ascend, above 0 and below 1", ascending=True)
_BOUNDARIES = _each(lambda each: 0 < each <= _INT32, "ascend, in epochs above 0, at most 2^31 - 1", ascending=True)
_GAMMA = _number(-100, 100, "be a finite number, from -100 to 100")
_GAMMAS = _each(lambda each: 0 <= each <= 100, "hold finite numbers, 0 or more, at most 100")
_ALPHA = Range(
    float,
    lambda values: all(0 <= each <= _LARGEST for each in values) and (not values or any(values)),
    "hold finite weights, 0 or more, at most 1e30, and one above 0",
    many=True,
)
_EPOCHS = _each(lambda each: 0 < each <= _INT32, "all be greater than 0, at most 2^31 - 1")
_GRID = Range(
    float,
    lambda values: all(-1 < each <= 100 for each in values) and 0 in values and list(values) == sorted(set(values)),
    "ascend, above -1, at most 100, and must hold 0, the plain temperature scaling to compare with",
    many=True,
)
_TEMPERATURE = _number(1, 1000, "be a finite number, from 1 to 1000: softer ones predict every class alike")
_TOLERANCE = _number(_SMALLEST, 1, "be greater than 0 (from 1e-30) and at most 1")
_SPLITS = Range(str, _are_splits, "hold val, train or test, each once", many=True)
_BINS = _whole(1, MOST_BINS)
_RESAMPLES = _whole(2, MOST_RESAMPLES)
_PRODUCTS = _whole(2, _MOST_PRODUCTS)
_PROBES = _whole(4, _MOST_PRODUCTS, words="be 4 or more, to have a standard error")
_DENSITY = Range(int, lambda value: value in (0, *range(2, 1001)), "be 0 (no density), or 2 or more, at most 1,000")
_KEEP = _whole(2, words="be 2 or more, so that one is left when the newest is corrupt")
_EVERY = _whole(0, words="be 0 (only after training) or more, in epochs")
_DIAGNOSED = _whole(0, words="be 0 (none) or more, in epochs")
_AT_ONCE = _whole(0, words="be 0 (measured) or the number of members in one call of the step")
_PROBED = _whole(0, words="be 0 (all) or more, in examples of a batch")
_TRACE_FORMS = ("taylor", "forward_over_forward", "jvp_of_grad")
_CALIBRATION_GAMMAS = (-0.5, -0.25, 0.0, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)

# The defaults are the job of configs/digits.py, which needs no download.
FIELDS: dict[str, Field] = {
    "seed": Field(0, _SEED, "seed of initial weights, order, augmentation, dropout, random vectors and bootstrap"),
    "data.name": Field("digits", _TEXT, "name of the data set, with its path after a colon (docs/reference.md)"),
    "data.split_seed": Field(1, _SEED, "seed of subsets, and of the splits that the data set does not come with"),
    "data.train_size": Field(None, _SIZE, "number of training examples"),
    "data.val_size": Field(None, _SIZE, "number of validation examples, by which everything is chosen"),
    "data.test_size": Field(None, _SIZE, "number of test examples, by which nothing is chosen"),
    "data.image_size": Field(None, _IMAGE_SIZE, "height and width of the resized images"),
    "data.max_words": Field(None, _WORDS, "size of the vocabulary, which is the most frequent words"),
    "data.max_length": Field(None, _WORDS, "number of words read from the start of each document"),
    "data.embeddings": Field(None, _PATH, "file of the word vectors that training begins with"),
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
    "loss.trace_examples": Field(0, _PROBED, "examples of a batch, on all devices, that the trace is of; 0 for all"),
    "loss.trace_form": Field("taylor", _choice(*_TRACE_FORMS), "automatic differentiation of the trace penalty"),
    "optimizer.name": Field("sgd", _TEXT, "name of the optimiser"),
    "optimizer.learning_rate": Field(0.1, _RATE, "highest learning rate of the schedule"),
    "optimizer.momentum": Field(0.9, _SHARE, "momentum of sgd"),
    "optimizer.nesterov": Field(False, Range(bool), "use Nesterov's form of momentum"),
    "optimizer.weight_decay": Field(5e-4, _FROM_0, "multiple of the parameters that is added to the gradient"),
    "optimizer.reduction": Field("mean", _choice("mean", "sum"), "reduction of a batch's losses, then minimised"),
    "optimizer.clip_norm": Field(
        0.0, _FROM_0._replace(words="be 0 (off) or more, at most 1e30"), "largest norm of the gradient"
    ),
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
        0, _whole(0), "first epochs, in which the schedule cosine raises the learning rate"
    ),
    "optimizer.select": Field(
        "last", _choice("last", "best_val"), "epoch whose parameters are kept: the last, or the most accurate on val"
    ),
    "start.run": Field(None, _RUN, "workdir of the run from whose checkpoint training starts"),
    "start.step": Field(None, _NEWEST, "step of that checkpoint"),
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
    "curvature.examples": Field(
        359, _whole(0, words="be 0 (no curvature) or more"), "examples from the start of each split"
    ),
    "curvature.batch_size": Field(359, _COUNT, "examples per batch of a Hessian product"),
    "curvature.max_products": Field(40, _PRODUCTS, "largest number of Hessian products for lambda_max"),
    "curvature.tolerance": Field(1e-3, _TOLERANCE, "relative residual at which lambda_max is found"),
    "curvature.num_probes": Field(60, _PROBES, "Hessian products of a trace"),
    "curvature.trace_method": Field("hutch++", _choice("hutchinson", "hutch++", "xtrace"), "estimator of the trace"),
    "curvature.density_probes": Field(10, _DENSITY, "number of random vectors for the spectral density"),
    "curvature.density_steps": Field(
        40, _whole(1, _MOST_PRODUCTS), "Lanczos steps from each random vector of the spectral density"
    ),
    "curvature.every": Field(0, _EVERY, "epochs between two measurements of lambda_max and trace in training"),
    "diagnostics.every": Field(0, _DIAGNOSED, "epochs between diagnostics of training"),
    "diagnostics.splits": Field(("train", "val"), _SPLITS, "splits on which training is diagnosed"),
    "diagnostics.examples": Field(0, _whole(0, words="be 0 (all) or more"), "examples of each split, evenly spaced"),
    "diagnostics.num_bins": Field(25, _BINS, "number of bins of the diagnostics' reliability diagrams"),
    "sweep.gamma": Field((), _axis(float, "finite numbers"), "values of loss.gamma to sweep"),
    "sweep.trace_penalty": Field((), _axis(float, "finite numbers"), "values of loss.trace_penalty to sweep"),
    "sweep.learning_rate": Field((), _axis(float, "finite numbers"), "values of optimizer.learning_rate to sweep"),
    "sweep.seed": Field((), _axis(int, "whole numbers"), "values of seed to sweep"),
    "sweep.at_once": Field(0, _AT_ONCE, "number of members of a sweep that train at once"),
}
SECTIONS = (*dict.fromkeys(name.rpartition(".")[0] for name in FIELDS if "." in name), "model.options")
OPTIONS = "model.options."  # names that begin so are options of the network
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_PLURALS = {int: "whole numbers", float: "numbers", bool: "true or false", str: "words"}


class _Section(ConfigDict):
    """A section that keeps what it is given, where ConfigDict makes 1.0 of True; kinds are checked as a job begins."""

    def __setitem__(self, key, value):
        if isinstance(value, bool) and not self.is_locked and isinstance(self.get(key), float):
            del self[key]
        super().__setitem__(key, value)


def default_config() -> ConfigDict:
    """A new config with the default of every field. Its values are checked when a job begins, not when they are set."""
    return nested({name: field.default for name, field in FIELDS.items()})


def nested(values: Mapping[str, Any]) -> ConfigDict:
    """The config with these values by dotted name; its sections are those of the fields."""
    config = _Section(type_safe=False)
    for section in SECTIONS:
        _section(config, section.split("."))
    for name, value in values.items():
        *sections, last = name.split(".")
        part = _section(config, sections)
        if name not in SECTIONS:
            part[last] = value
    return config


def _section(config: ConfigDict, names: Sequence[str]) -> ConfigDict:
    for name in names:
        if name not in config:
            config[name] = _Section(type_safe=False)
        config = config[name]
    return config


def values_of(config: ConfigDict) -> dict[str, Any]:
    """Every value of a config by its dotted name; whatever is no section of the fields is a value.

    Raises:
      InputError: a section is none, or a reference gives no value.
    """
    return dict(_values(config, ""))


def _values(config: ConfigDict, prefix: str) -> Iterator[tuple[str, Any]]:
    for key in _keys(config, prefix):
        name = f"{prefix}{key}"
        try:
            value = config[key]
        except Exception as error:  # whatever the arithmetic of references raises
            raise InputError(f"config.{shown(name)} has no value: {named(error)}") from error
        if name not in SECTIONS:
            yield name, value
        elif isinstance(value, ConfigDict):
            yield from _values(value, f"{name}.")
        else:
            raise InputError(
                f"config.{name} is {shown(value)}: it must be a section of fields, as default_config() has"
            )


def _keys(config: ConfigDict, prefix: str) -> list:
    try:
        return config.keys()
    except TypeError as error:  # they cannot be sorted
        raise InputError(f"config.{prefix} holds names that are no text: name fields as --fields shows them") from error


def _allowed(words: str) -> str:
    """What a value may be, from what it must do: "be 0 or more", "hold numbers" and "ascend" after "it must"."""
    return re.sub("^ascend", "ascending", re.sub("^(be|hold) ", "", words))


def describe(names: Mapping[str, Collection[str]], options: Mapping[str, Mapping[str, Any]]) -> str:
    """The table of all fields, a line for each: name, default, meaning, range.

    names: field -> the names that it may hold. options: network -> its options with their defaults.
    """
    lines = []
    for name, field in FIELDS.items():
        words = " ".join(names[name]) if name in names else _allowed(field.range.words)
        lines.append(f"{name:<27} {field.default!s:<15} {field.meaning}{f' ({words})' if words else ''}")
    lines += ["", "The options of each network, with its own values:"]
    for network, own in options.items():
        lines.append(f"{network:<27} {', '.join(f'{name}={value}' for name, value in own.items())}".rstrip())
    return "\n".join(lines)


def is_field(name: str) -> bool:
    """Whether a value can be set under this dotted name. Every name in model.options counts, whatever the network."""
    if name.startswith(OPTIONS):
        return name.removeprefix(OPTIONS).isidentifier()
    return name in FIELDS and FIELDS[name].range.kind is not dict


def unknown(name: str) -> str:
    """Error message for a field that does not exist, with the nearest name: of its section, its last part, or any."""
    name = shown(name)
    section, _, last = name.rpartition(".")
    names = [field for field in FIELDS if is_field(field)]
    same = [field for field in names if field.rpartition(".")[2] == last]
    own = {field.rpartition(".")[2]: field for field in names if section and field.rpartition(".")[0] == section}
    near = [own[part] for part in difflib.get_close_matches(last, own, n=1)] or same
    if not near and section == "model":
        near = [f"{OPTIONS}{last}"]
    near = near or difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    if name in FIELDS:
        return f"config.{name} is no field of its own: set its parts, as config.{name}.width"
    hint = f"did you mean config.{near[0]}?" if near else "python -m focalgeo.run --fields shows all"
    return f"no such config field: config.{name}; {hint}"


def typed(name: str, value: Any) -> Any:
    """The value in its field's kind: a whole number for a float becomes a float, a list a tuple, NumPy's Python's own.

    Raises:
      InputError: it is of another kind.
    """
    own = _plain(value)
    if name.startswith(OPTIONS):
        return _option(name, own)
    range_ = FIELDS[name].range
    if own is None and range_.optional:
        return None
    if not range_.many and _is_a(range_.kind, own):
        return _float(name, own) if range_.kind is float else own
    if range_.many and isinstance(own, tuple) and all(_is_a(range_.kind, each) for each in own):
        return own
    wanted = f"hold {_PLURALS[range_.kind]}" if range_.many else f"be {_KINDS[range_.kind]}"
    raise InputError(f"config.{name} is {shown(value)}: it must {wanted}{' or None' if range_.optional else ''}")


def _option(name: str, value: Any) -> Any:
    """An option of the network, whose kind its constructor knows."""
    if all(each is None or isinstance(each, bool | int | float | str) for each in _elements(value)):
        return value
    raise InputError(f"config.{name} is {shown(value)}: it must be a number, text, true or false, or hold such")


def _elements(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)


def _plain(value: Any) -> Any:
    """The value, or each of a list, as Python's own bool, int, float (0 for -0) or str; what is none of these stays.

    An array is a list of its numbers, or one number.
    """
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, tuple | list | range):
        return tuple(each if isinstance(each, tuple | list) else _plain(each) for each in value)
    kinds = ((bool, bool), (Integral, int), (Real, lambda number: float(number) + 0.0), (str, str))
    return next((convert(value) for kind, convert in kinds if isinstance(value, kind)), value)


def _float(name: str, value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InputError(f"config.{name} is {shown(value)}: it must {FIELDS[name].range.words}") from None


def _is_a(kind: type, value: Any) -> bool:
    return isinstance(value, {float: int | float}.get(kind, kind)) and (kind is bool or not isinstance(value, bool))


def named(error: BaseException) -> str:
    """The error as a message shows it: its type, and the first line of what it says if it says something."""
    said = shown(error, most=300).partition("\\n")[0].strip()
    return f"{type(error).__name__}: {said}".removesuffix(": ")
