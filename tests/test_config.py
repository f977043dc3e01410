"""The config: its table, what a config file and a command line may say, and the one line for whatever is wrong."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from focalgeo import job
from focalgeo.config import (
    FIELDS,
    chosen,
    default_config,
    load_config,
    split_arguments,
    split_flags,
    with_values,
)
from focalgeo.types import InputError

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "configs" / "digits.py"


def test_the_defaults_are_in_their_ranges_and_of_their_kinds():
    checked = job.check_config(default_config())
    assert checked.to_dict() == default_config().to_dict()
    assert (type(checked.loss.gamma), type(checked.optimizer.epochs)) == (float, int)


def test_what_is_changed_in_one_config_is_not_in_the_next():
    first = default_config()
    first.model.options.hidden, first.loss.gamma = (8,), 5.0
    assert (default_config().loss.gamma, dict(default_config().model.options)) == (3.0, {})


@pytest.mark.parametrize(
    ("argument", "name", "value"),
    [
        ("--config.loss.gamma=3", "loss.gamma", 3.0),
        ("--config.optimizer.learning_rate=1e-3", "optimizer.learning_rate", 1e-3),
        ("-config.seed=7", "seed", 7),
        ("--config.data.name=folder:cifar10.tar.xz", "data.name", "folder:cifar10.tar.xz"),
        ("--config.data.name=20", "data.name", "20"),
        ("--config.data.embeddings=None", "data.embeddings", None),
        ("--config.data.train_size=None", "data.train_size", None),
        ("--config.optimizer.nesterov", "optimizer.nesterov", True),
        ("--noconfig.optimizer.nesterov", "optimizer.nesterov", False),
        ("--config.optimizer.nesterov=true", "optimizer.nesterov", True),
        ("--config.sweep.seed=(0, 1)", "sweep.seed", (0, 1)),
        ("--config.sweep.seed=[0, 1]", "sweep.seed", (0, 1)),
        ("--config.sweep.seed=0,1", "sweep.seed", (0, 1)),
        ("--config.sweep.seed=0", "sweep.seed", (0,)),
        ("--config.sweep.seed=()", "sweep.seed", ()),
        ("--config.curvature.splits=val,train", "curvature.splits", ("val", "train")),
        ("--config.curvature.splits=('val', 'train')", "curvature.splits", ("val", "train")),
        ("--config.evaluation.methods=temperature_scaling", "evaluation.methods", ("temperature_scaling",)),
        ("--config.model.options.growth=12", "model.options.growth", 12),
        ("--config.model.options.hidden=(8, 8)", "model.options.hidden", (8, 8)),
        ("--config.model.options.hidden=None", "model.options.hidden", None),
    ],
)
def test_a_field_on_the_command_line_has_its_kind(argument, name, value):
    values, others = split_arguments(["run.py", argument, "--workdir=w"])
    assert values == {name: value}
    assert type(values[name]) is type(value)
    assert others == ["run.py", "--workdir=w"]


def test_a_value_may_follow_as_an_argument():
    values, others = split_arguments(["--config.loss.gamma", "5", "--config", "c.py"])
    assert values == {"loss.gamma": 5.0}
    assert others == ["--config", "c.py"]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.loss.gama=3", "no such config field: config.loss.gama; did you mean config.loss.gamma?"),
        ("--config.los.gamma=3", "no such config field: config.los.gamma; did you mean config.loss.gamma?"),
        ("--config.epochs=3", "no such config field: config.epochs; did you mean config.optimizer.epochs?"),
        (
            "--config.model.width=3",
            "config.model.width; did you mean config.model.options.width?",
        ),
        ("--config.xyz=3", "no such config field: config.xyz; python -m focalgeo.run --fields shows all"),
        ("--config.model.options=3", "config.model.options is no field of its own"),
        ("--config.model.options.a.b=3", "no such config field: config.model.options.a.b"),
        ("--config.loss.gamma=big", "config.loss.gamma is big: it must be a number"),
        ("--config.loss.gamma=True", "config.loss.gamma is True: it must be a number"),
        ("--config.seed=1.5", "config.seed is 1.5: it must be a whole number"),
        ("--config.data.train_size=few", "config.data.train_size is few: it must be a whole number or None"),
        ("--config.optimizer.nesterov=2", "config.optimizer.nesterov is 2: it must be true or false"),
        ("--config.sweep.seed=(0, 0.5)", "config.sweep.seed is (0, 0.5): it must hold whole numbers"),
        ("--config.sweep.gamma={}", "config.sweep.gamma is {}: it must hold numbers"),
        ("--config.loss.gamma", "a field is set as --config.loss.gamma=VALUE"),
        ("--noconfig.loss.gamma", "a field is set as --config.loss.gamma=VALUE"),
    ],
)
def test_a_wrong_argument_is_one_line(argument, message):
    with pytest.raises(InputError) as caught:
        split_arguments(["run.py", argument])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("optimizer.epochs", 1.5, "config.optimizer.epochs is 1.5: it must be a whole number"),
        ("optimizer.epochs", "3", "config.optimizer.epochs is 3: it must be a whole number"),
        ("loss.gammas", 3.0, "config.loss.gammas is 3.0: it must hold numbers"),
        ("loss.gama", 3.0, "no such config field: config.loss.gama; did you mean config.loss.gamma?"),
        ("model.hidden", (8,), "did you mean config.model.options.hidden?"),
        ("model.options.hiden", (8,), "mlp has no such option (it has: hidden); did you mean 'hidden'?"),
        ("loss.trace_form", "hvp", "it must be taylor, forward_over_forward or jvp_of_grad"),
    ],
)
def test_a_config_file_obeys_the_kinds_as_the_command_line_does(name, value, message):
    config = default_config()
    config.update_from_flattened_dict({name: value})
    with pytest.raises(InputError) as caught:
        job.check_config(config)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "last", "message"),
    [
        ({"optimizer.schedule": "cosine", "optimizer.epochs": 60}, {"optimizer.warmup_epochs": 59}, "leaves no epoch"),
        ({"loss.name": "fls_532", "optimizer.epochs": 101}, {}, "changes gamma at epochs 100, 250"),
    ],
)
def test_a_warm_up_ends_and_a_schedule_changes_gamma_before_the_last_epoch(changes, last, message):
    config = with_values(default_config(), {**changes, **last})
    job.check_config(config)
    one_less = with_values(config, {"optimizer.epochs": config.optimizer.epochs - 1})
    with pytest.raises(InputError, match=message):
        job.check_config(one_less)


def test_whole_numbers_are_numbers_and_lists_are_tuples():
    config = job.check_config(with_values(default_config(), {"loss.gamma": 2, "loss.gammas": [5, 3]}))
    assert (repr(config.loss.gamma), config.loss.gammas) == ("2.0", (5, 3))


def test_values_of_numpy_become_python_s_own():
    given = {
        "seed": np.int64(3),
        "loss.gamma": np.array(0.5),
        "sweep.gamma": np.array([0.0, 1.5]),
        "loss.gammas": [np.float64(-0.0), 3],
        "data.name": np.str_("a"),
    }
    checked = job.check_config(with_values(default_config(), given | {"optimizer.nesterov": np.True_}))
    values = (checked.seed, checked.loss.gamma, *checked.loss.gammas, checked.data.name, checked.optimizer.nesterov)
    assert list(map(type, values)) == [int, float, float, int, str, bool]
    assert repr(values) == "(3, 0.5, 0.0, 3, 'a', True)"


def test_true_is_no_number_though_configdict_would_make_it_one():
    config = default_config()
    config.loss.gamma = True
    with pytest.raises(InputError, match=r"config\.loss\.gamma is True: it must be a number"):
        job.check_config(config)
    config.loss.gamma = 2
    assert job.check_config(config).loss.gamma == 2.0


def test_a_file_that_changes_twice_in_a_second_is_read_as_it_is(tmp_path):
    for seed in (1, 2, 3):
        lines = ["from focalgeo.config import default_config", "", "def get_config():", "    config = default_config()"]
        (tmp_path / "own.py").write_text("\n".join([*lines, f"    config.seed = {seed}", "    return config", ""]))
        assert load_config(tmp_path / "own.py").seed == seed
    assert [path.name for path in tmp_path.iterdir()] == ["own.py"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workdir=a", "--workdir", "b"], "--workdir is given twice"),
        (["--workdir="], "--workdir is empty: for example --workdir=runs/digits"),
        (["--workdir", "--shard=0/2"], "--workdir is empty"),
        (["--workdri=a"], "Unknown command line flag 'workdri': did you mean --workdir?"),
        (["workdir=a"], "unknown argument 'workdir=a': fields are set as --config.loss.gamma=3"),
    ],
)
def test_a_flag_is_given_once_with_a_value(flags, message):
    with pytest.raises(InputError) as caught:
        split_flags(flags, {"workdir": "runs/digits", "shard": "0/2"})
    assert message in str(caught.value)


def test_a_missing_field_is_named():
    config = with_values(ConfigDict(), {"seed": 1, "optimizer.epochs": 3})
    with pytest.raises(InputError, match=r"config\.data\.name is missing"):
        job.check_config(config)
    config = default_config()
    del config.loss.gamma
    with pytest.raises(InputError, match=r"config\.loss\.gamma is missing: start from focalgeo\.config\."):
        job.check_config(config)


def test_names_that_are_told_are_checked():
    known = job.preparation.KNOWN._replace(names={"evaluation.methods": ("temperature_scaling",)})
    config = with_values(default_config(), {"evaluation.methods": ("temperature_scalling",)})
    with pytest.raises(InputError, match="'temperature_scalling': did you mean 'temperature_scaling'"):
        job.preparation.check(config, known)


def test_all_fields_are_shown_with_what_they_may_hold():
    shown = job.describe_config().splitlines()
    for name, field in FIELDS.items():
        (line,) = [line for line in shown if line.split(" ")[0] == name]
        assert str(field.default) in line
        assert field.meaning in line
    assert "vit                         patch=4, depth=6, width=192, heads=3" in shown
    assert "resnet18_2w" in next(line for line in shown if line.startswith("model.name"))


def test_config_files_import_their_siblings_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_config(f"{ROOT}/configs/digits_gamma.py:quick").sweep.gamma == (0.0, 3.0)
    shutil.copytree(ROOT / "configs", tmp_path / "jobs")
    own = "from jobs import digits\n\ndef get_config():\n    config = digits.get_config()\n    config.seed = 5\n"
    (tmp_path / "jobs" / "own.py").write_text(own + "    return config\n")
    assert load_config("jobs/own.py").seed == 5


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from configs import nothing", "own.py, line 1: ImportError: cannot import name 'nothing' from 'configs'"),
        ("\ndef get_config():\n    return 1 / 0", "own.py, line 3: ZeroDivisionError: division by zero"),
        ("def get_config():\n    return {}", "the get_config of own.py returns a dict and no config"),
        ("def get_job():\n    return {}", "own.py has no get_config that returns a config"),
        ("def get_config(:", "own.py: SyntaxError: invalid syntax (own.py, line 1)"),
    ],
)
def test_what_a_config_file_raises_is_one_line_with_its_place(code, message, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load_config("own.py")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_may_stand_behind_a_colon_or_beside():
    assert load_config(f"{DIGITS}:quick").optimizer.epochs == load_config(DIGITS, "quick").optimizer.epochs == 2
    assert isinstance(load_config(DIGITS), ConfigDict)
    assert chosen("fl3, quick", "c.py", {"loss": ("ce", "fl3"), "quick": ("quick",)}) == {
        "loss": "fl3",
        "quick": "quick",
    }


def test_truths_infinities_and_single_sizes_are_taken_as_they_are_written():
    values, _ = split_arguments(
        ["--config.optimizer.nesterov=1", "--config.optimizer.learning_rate=inf", "--config.model.options.hidden=64"]
    )
    assert values == {
        "optimizer.nesterov": True,
        "optimizer.learning_rate": float("inf"),
        "model.options.hidden": 64,
    }
