"""Random values of every type in config fields, random arguments of the command, random files as config files."""

import contextlib
import io
import json
import re

import numpy as np
import pytest
from hostile.cases import ROOT
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict, FrozenConfigDict, config_dict

from focalgeo import job, run
from focalgeo.config import FIELDS, default_config, load_config
from focalgeo.types import InputError, shown

pytestmark = pytest.mark.long
NAMES = sorted(name for name in FIELDS if name != "model.options")
SECTIONS = sorted({name.rpartition(".")[0] for name in NAMES if "." in name} | {"model.options"})
OPTIONS = [f"model.options.{name}" for name in ("hidden", "widths", "blocks", "depth", "dropout", "x", "né", "")]
DIGITS = f"{ROOT}/configs/digits.py"
TEXT = st.text(max_size=8) | st.text("\n\x00\udcff\u2028 'é", max_size=4) | st.builds(lambda: "x" * 10_000)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([0, 1, 2, 3, 0.5, True, -0.0, 1e30, 1e300, 5e-324, 2**31 - 1, 2**31, 2**63, 10**400])
    | st.builds(lambda: 10**5000)
    | st.sampled_from([np.int64(3), np.float32(0.5), np.float64("nan"), np.True_, np.int8(-1), np.float16(2), 1 + 2j])
)
NAMED = st.sampled_from(
    ["focal_loss", "adafocal_loss", "fls_532", "mmce", "cnn", "vit", "tree_lstm", "adam", "cosine", "val", "sum", "ece"]
)


class Odd:
    """An object that cannot be shown, compared or hashed."""

    __hash__ = None

    def __repr__(self):
        raise ValueError("no\nway")

    def __eq__(self, other):
        raise ValueError


SCALARS = st.none() | st.booleans() | NUMBERS | TEXT | NAMED | st.binary(max_size=4)
OBJECTS = st.builds(Odd) | st.sampled_from([object(), print, Odd, np.eye(3), np.arange(3), range(3), NotImplemented])
VALUES = st.recursive(
    SCALARS | OBJECTS | st.builds(config_dict.placeholder, st.just(int)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=2)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=2)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=2).map(ConfigDict)
    ),
    max_leaves=4,
)
CHANGES = st.dictionaries(st.sampled_from(NAMES + SECTIONS + OPTIONS), VALUES, min_size=1, max_size=3)


def changed(config, changes):
    """The config with these values put where a config file would put them; what ConfigDict refuses is left out."""
    for name, value in changes.items():
        *sections, last = name.split(".")
        part = config
        for section in sections:
            part = part.get(section) if isinstance(part, ConfigDict) else None
        if isinstance(part, ConfigDict):
            with contextlib.suppress(OverflowError, TypeError, ValueError, RecursionError):  # told with its line
                part[last] = value
    return config


def check_refused(error):
    assert str(error)
    assert len(shown(error, most=500).splitlines()) == 1


def check_valid(checked):
    assert isinstance(checked, FrozenConfigDict)
    text = json.dumps(checked.to_dict(), allow_nan=False)
    assert len(text) < 100_000
    again = job.check_config(ConfigDict(json.loads(text)))
    assert json.dumps(again.to_dict(), allow_nan=False) == text
    for name, field in FIELDS.items():
        value = checked
        for part in name.split("."):
            value = value[part]
        if field.range.kind is not dict and not field.range.many and value is not None:
            assert type(value) is field.range.kind


@settings(max_examples=400, deadline=None)
@given(CHANGES)
@example({"loss.gamma": True})
@example({"seed": config_dict.required_placeholder(int)})
def test_any_values_of_any_fields_are_one_line_or_a_config(changes):
    config = changed(default_config(), changes)
    try:
        checked = job.check_config(config)
    except InputError as error:
        check_refused(error)
    else:
        check_valid(checked)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(NAMES + SECTIONS), st.sampled_from([name for name in NAMES + SECTIONS if name != "seed"]))
def test_a_config_that_holds_itself_or_a_reference_ends(name, other):
    config = default_config()
    changed(config, {other: config.get_ref("seed")})
    changed(config, {f"{name}.mine" if name in SECTIONS else name: config})
    with pytest.raises(InputError) as caught:
        job.check_config(config)
    check_refused(caught.value)


FLAGS = st.sampled_from(
    [f"--config.{name}" for name in (*NAMES, "x", "", "seed.", "model.options.hidden", "model.options")]
    + ["--noconfig.seed", "--config", "--workdir", "--shard", "--", "-", "", "config", "--configs", "--flagfile", "--v"]
)
WRITTEN = TEXT | VALUES.map(lambda value: shown(value, most=5000)) | NAMED
ARGUMENTS = st.lists(st.tuples(FLAGS, WRITTEN, st.sampled_from(["=", " ", ""])), max_size=4)


@settings(max_examples=400, deadline=None)
@given(ARGUMENTS)
@example([("--config.seed", "{[]: 1}", "=")])
@example([("--config.seed", "(" * 5000, "=")])
def test_any_arguments_are_one_line_or_a_config(given_arguments):
    arguments = [f"--config={DIGITS}:quick", "--workdir=w"]
    for flag, value, joint in given_arguments:
        arguments += {"=": [f"{flag}={value}"], " ": [flag, value], "": [flag]}[joint]
    try:
        checked = job.check_config(run.parse(arguments).config)
    except InputError as error:
        check_refused(error)
    else:
        check_valid(checked)


@settings(max_examples=60, deadline=None)
@given(ARGUMENTS)
def test_a_command_that_is_refused_says_one_line(given_arguments):
    """Not a workdir: what is right so far is missing --workdir."""
    arguments = ["focalgeo.run", f"--config={DIGITS}:quick"]
    arguments += [f"{flag}={value}" for flag, value, _ in given_arguments if flag not in ("--workdir", "--fields")]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run.main(arguments) == 2
    assert out.getvalue() == ""
    assert re.fullmatch("focalgeo: [^\n]{1,500}\n", err.getvalue())


LINES = st.lists(
    st.sampled_from(
        [
            "import sys, warnings",
            "def get_config(words=''):",
            "    config = default_config()",
            "    config.seed = 1",
            "    return config",
            "    return {}",
            "    raise BaseException",
            "raise SystemExit",
            "sys.path.clear()",
            "sys.path = None",
            "warnings.warn('old')",
            "from focalgeo.config import default_config",
            "import nothing_of_that_name",
            "\x00",
            "x = '\\d'",
            "(" * 300,
        ]
    )
    | st.text(max_size=10),
    max_size=7,
)


@settings(max_examples=100, deadline=None)
@given(LINES | st.binary(max_size=20))
def test_any_file_is_one_line_or_a_config(tmp_path_factory, lines):
    file = tmp_path_factory.getbasetemp() / "own.py"
    source = lines if isinstance(lines, bytes) else "\n".join(lines).encode(errors="surrogatepass")
    file.write_bytes(source)
    try:
        config = load_config(file)
    except InputError as error:
        check_refused(error)
    else:
        assert isinstance(config, ConfigDict)
    assert not (file.parent / "__pycache__").exists()
