"""Random values of every type in config fields, random arguments of the command, random files as config files."""

import contextlib
import functools
import json

import msgspec
import numpy as np
import pytest
from hostile.cases import ROOT
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict, config_dict

from focalgeo import job, run
from focalgeo.config import FIELDS, default_config
from focalgeo.types import InputError, shown

pytestmark = pytest.mark.long
NAMES = [*FIELDS, "model.options", "model.options.hidden", "model.options.né", "x", "loss"]
DIGITS = f"{ROOT}/configs/digits.py"


class Odd:
    """An object that cannot be shown, compared or hashed."""

    __hash__ = None

    def __repr__(self):
        raise ValueError("no\nway")

    def __eq__(self, other):
        raise ValueError


TEXT = st.text(max_size=8) | st.text("\n\x00\udcff\u2028 'é", max_size=4) | st.builds(lambda: "x" * 10_000)
NUMBERS = (
    st.integers()
    | st.floats()
    | st.sampled_from([0, 1, 0.5, True, -0.0, 1e30, 1e300, 5e-324, 2**31 - 1, 2**31, 10**400])
    | st.sampled_from([np.int64(3), np.float32(0.5), np.float64("nan"), np.True_, 1 + 2j])
)
NAMED = st.sampled_from(["focal_loss", "adafocal_loss", "fls_532", "cnn", "vit", "adam", "cosine", "val", "sum", "ece"])
OTHERS = st.builds(Odd) | st.sampled_from([object(), print, np.eye(3), np.arange(3), range(3)])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT | NAMED | st.binary(max_size=4) | OTHERS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.sets(st.integers(), max_size=2)
        | st.dictionaries(st.text("abc", max_size=3), inner, max_size=2).map(ConfigDict)
    ),
    max_leaves=4,
)


def one_line_or_a_config(make):
    try:
        checked = job.check_config(make())
    except InputError as error:
        said = str(error)
    else:
        check_config(checked)
        return
    assert 0 < len(said) < 600
    assert len(said.splitlines()) == 1


def check_config(checked):
    """In the kinds of its fields, and the same once it was JSON."""
    text = json.dumps(checked.to_dict(), allow_nan=False)
    assert job.check_config(ConfigDict(json.loads(text))) == checked
    for name, field in FIELDS.items():
        value = functools.reduce(lambda part, key: part[key], name.split("."), checked)
        assert msgspec.convert(value, field.kind) == value


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), VALUES, min_size=1, max_size=3))
@example({"seed": config_dict.required_placeholder(int)})
def test_any_values_of_any_fields_are_one_line_or_a_config(changes):
    config = default_config()
    for name, value in changes.items():
        section, _, last = name.rpartition(".")
        with contextlib.suppress(Exception):  # what ConfigDict refuses it tells with its line
            part = config
            for key in filter(None, section.split(".")):
                part = part[key]
            part[last] = value
    one_line_or_a_config(lambda: config)


FLAGS = [*(f"--config.{name}" for name in (*NAMES, "", "seed.")), "--config", "--workdir", "--shard", "--", "", "--v"]
WRITTEN = TEXT | VALUES.map(lambda value: shown(value, most=5000)) | NAMED
ARGUMENTS = st.lists(st.tuples(st.sampled_from(FLAGS), WRITTEN, st.sampled_from(["=", " ", ""])), max_size=4)


@settings(max_examples=300, deadline=None)
@given(ARGUMENTS)
@example([("--config.seed", "{[]: 1}", "=")])
@example([("--config.seed", "(" * 5000, "=")])
def test_any_arguments_are_one_line_or_a_config(given_arguments):
    arguments = [f"--config={DIGITS}:quick", "--workdir=w"]
    for flag, value, joint in given_arguments:
        arguments += {"=": [f"{flag}={value}"], " ": [flag, value], "": [flag]}[joint]
    one_line_or_a_config(lambda: run.parse(arguments)[0])
