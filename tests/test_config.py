"""The config: its table, what a config file and a command line may say, and the one line for whatever is wrong."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from focalgeo import config as c
from focalgeo import job
from focalgeo.types import InputError

ROOT = Path(__file__).parent.parent
DIGITS = ROOT / "configs" / "digits.py"
FLAGS = {"workdir": "runs/digits", "shard": "0/2"}


def changed(**values):
    return c.with_values(c.default_config(), {name.replace("__", "."): value for name, value in values.items()})


def refused(call, *words):
    with pytest.raises(InputError) as caught:
        call()
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)


def test_the_defaults_are_in_their_ranges_and_no_config_shares_them():
    first = c.default_config()
    assert job.check_config(first).to_dict() == first.to_dict()
    first.model.options.hidden, first.loss.gamma = (8,), 5.0
    assert (c.default_config().loss.gamma, dict(c.default_config().model.options)) == (3.0, {})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("loss.gamma", "3", 3.0),
        ("data.name", "20", "20"),
        ("data.embeddings", "None", None),
        ("data.train_size", "none", None),
        ("optimizer.nesterov", "true", True),
        ("sweep.seed", "(0, 1)", (0, 1)),
        ("sweep.seed", "0,1", (0, 1)),
        ("sweep.seed", "0", (0,)),
        ("sweep.seed", "()", ()),
        ("evaluation.methods", "('temperature_scaling',)", ("temperature_scaling",)),
        ("model.options.hidden", "(8, 8)", (8, 8)),
        ("model.options.hidden", "64", 64),
    ],
)
def test_a_field_on_the_command_line_has_its_kind(name, text, value):
    for words in ([f"--config.{name}={text}"], [f"-config.{name}", text]):
        values, flags = c.parse_arguments([*words, "--workdir=~/w"], FLAGS)
        assert values == {name: value}
        assert type(values[name]) is type(value)
        assert flags == {"workdir": str(Path.home() / "w")}
    for flag in ("--join-timeout", "--join_timeout"):
        assert c.parse_arguments([f"{flag}=3"], {"join-timeout": "300"})[1] == {"join-timeout": "3"}


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--config.loss.gama=3", "did you mean config.loss.gamma?"),
        ("--config.los.gamma=3", "did you mean config.loss.gamma?"),
        ("--config.epochs=3", "did you mean config.optimizer.epochs?"),
        ("--config.xyz=3", "--fields shows all"),
        ("--config.model.options=3", "no such config field"),
        ("--config.loss.gamma=big", "config.loss.gamma is 'big': give number"),
        ("--config.loss.gamma='3'", "config.loss.gamma is '3': give number"),
        ("--config.data.train_size=few", "null"),
        ("--config.sweep.seed=(0, 0.5)", "config.sweep.seed is (0, 0.5)"),
        ("--config.sweep.gamma={}", "config.sweep.gamma is {}"),
        ("--config.loss.gamma=", "no value"),
        ("--config.loss.gamma", "no value"),
        ("--workdir=b", "--workdir is given twice"),
        ("--shrad=0/2", "did you mean 'shard'?"),
        ("gamma=3", "unknown argument 'gamma=3'"),
    ],
)
def test_a_wrong_argument_is_one_line(argument, words):
    refused(lambda: c.parse_arguments(["--workdir=a", argument], FLAGS), words)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("seed", (0, 2**31 - 1), (-1, 2**31)),
        ("optimizer.epochs", (1,), (0, 1.5, "3")),
        ("optimizer.learning_rate", (1e-30, 1e30), (0, 1e31, float("nan"))),
        ("optimizer.momentum", (0, 0.999), (1, -0.1)),
        ("loss.alpha", ((), (0, 1)), ((0, 0), (-1, 1))),
        ("evaluation.gammas", ((-0.99, 0, 100),), ((-1, 0), (0.5, 1), (0, 0), (1, 0))),
        ("evaluation.temperature_step", (0.5, 0.01), (0.3, 2, 1e-4)),
        ("curvature.splits", (("val", "train"),), ((), ("val", "val"), ("dev",))),
        ("curvature.density_probes", (0, 2, 1000), (1, 1001)),
        ("sweep.gamma", ((0, 1),), ((1, 1), (float("inf"),))),
        ("evaluation.methods", (("temperature_scaling",),), (("temperature_scalling",), "isotonic")),
        ("model.options.hidden", ((8,),), ("wide",)),
    ],
)
def test_a_range_ends_where_its_words_say(name, good, bad):
    for value in good:
        job.check_config(changed(**{name: value}))
    for value in bad:
        refused(lambda value=value: job.check_config(changed(**{name: value})), f"config.{name} ")


RULES = [  # for each rule fields that just keep it, one more that breaks it, and how its line begins
    (
        {"evaluation__gammas": (0, 1), "evaluation__max_temperature": 500},
        {"evaluation__max_temperature": 500.01},
        "evaluation asks",
    ),
    (
        {"optimizer__schedule": "cosine", "optimizer__warmup_epochs": 59},
        {"optimizer__warmup_epochs": 60},
        "optimizer.warmup_epochs",
    ),
    ({"loss__trace_examples": 64}, {"loss__trace_examples": 65}, "loss.trace_examples is 65"),
    ({"loss__trace_target": 1, "loss__trace_bound": 0.1}, {"loss__trace_bound": 0}, "loss.trace_bound is 0"),
    (
        {"loss__trace_target": 1, "loss__trace_bound": 0.1, "loss__trace_penalty": 0.1},
        {"loss__trace_penalty": 0.2},
        "loss.trace_bound is 0.1",
    ),
    ({"loss__trace_target": 1, "loss__trace_bound": 0.1}, {"curvature__examples": 0}, "curvature.examples is 0"),
    (
        {"sweep__trace_target": (0, 1), "loss__trace_bound": 0.1},
        {"sweep__trace_target": ()},
        "loss.trace_bound is of",
    ),
    ({"curvature__sharpness": True}, {"curvature__examples": 0}, "curvature.examples is 0"),
    ({"loss__name": "signed_focal_loss", "loss__gamma": -1}, {"loss__name": "focal_loss"}, "loss.gamma is -1"),
    (
        {"optimizer__sam_adaptive": True, "optimizer__sam_radius": 1},
        {"optimizer__sam_radius": 0},
        "optimizer.sam_adaptive",
    ),
    ({"start__run": "r", "start__step": 17}, {"start__run": None}, "start.run"),
    ({"start__run": "r", "start__modules": ("Dense_0",)}, {"start__optimizer": "kept"}, "start.optimizer"),
    ({"loss__name": "sample_dependent_focal_loss"}, {"loss__thresholds": (0.2, 0.3)}, "loss.gammas"),
    ({"loss__name": "fls_532", "optimizer__epochs": 101}, {"optimizer__epochs": 100}, "loss.name fls_532"),
    ({"sweep__gamma": (0, 1)}, {"loss__name": "cross_entropy"}, "sweep.gamma"),
    ({"sweep__seed": range(1000)}, {"sweep__seed": range(1001)}, "sweep has"),
    ({"sweep__seed": range(6), "sweep__at_once": 3}, {"sweep__at_once": 4}, "sweep.at_once is 4"),
]


def test_every_rule_between_fields_holds_up_to_its_bound():
    for keeps, breaks, words in RULES:
        kept = {"evaluation__temperature_step": 0.01} | keeps
        job.check_config(changed(**kept))
        refused(lambda kept=kept, breaks=breaks: job.check_config(changed(**kept | breaks)), f"config.{words}")


def test_each_member_of_a_sweep_is_checked():
    refused(lambda: job.check_config(changed(sweep__gamma=(0, -1))), "config.sweep, member gamma=-1: config.loss.gamma")


def test_members_are_all_combinations_the_last_axis_fastest():
    config = job.check_config(changed(sweep__gamma=(0, 3), sweep__seed=(1, 2)))
    assert list(map(c.member_name, c.combinations(config))) == [f"gamma={g},seed={s}" for g in (0, 3) for s in (1, 2)]
    member = c.member_config(config, c.combinations(config)[1])
    assert (member.loss.gamma, member.seed, c.axes(member)) == (0.0, 2, {})
    assert c.combinations(member) == [{}]
    assert c.member_name({}) == ""


def test_values_of_numpy_become_python_s_own_and_lists_tuples():
    own = {"seed": np.int64(3), "loss.gamma": np.array(2), "sweep.gamma": np.array([0.0, 1.5])}
    checked = job.check_config(changed(**own, **{"loss.gammas": [np.float64(-0.0), 3], "data.name": np.str_("digits")}))
    values = (checked.seed, checked.loss.gamma, checked.sweep.gamma, checked.loss.gammas, checked.data.name)
    assert repr(values) == "(3, 2.0, (0.0, 1.5), (0.0, 3.0), 'digits')"


def test_a_missing_field_of_a_config_file_has_its_default_and_an_unknown_one_is_named():
    config = c.default_config()
    del config.loss.gamma
    assert job.check_config(config) == job.check_config(c.default_config())
    config.loss.gama = 3.0
    refused(lambda: job.check_config(config), "config.loss.gama; did you mean config.loss.gamma?")
    refused(lambda: job.check_config(changed(**{"model.options.hiden": (8,)})), "did you mean 'hidden'?")


def test_all_fields_are_shown_with_what_they_may_hold():
    shown = job.describe_config().splitlines()
    for name, field in c.FIELDS.items():
        (line,) = [line for line in shown if line.split(" ")[0] == name]
        assert str(field.default) in line
        assert field.meaning in line
    assert "vit                         patch=4, depth=6, width=192, heads=3" in shown
    assert "resnet18_2w" in next(line for line in shown if line.startswith("model.name"))


def test_config_files_import_their_siblings_from_any_folder_and_are_read_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert c.load_config(f"{ROOT}/configs/digits_gamma.py:quick").sweep.gamma == (0.0, 3.0)
    assert c.load_config(DIGITS, "quick").optimizer.epochs == c.load_config(f"{DIGITS}:quick").optimizer.epochs == 2
    shutil.copytree(ROOT / "configs", tmp_path / "jobs")
    for seed in (5, 6):  # within a second
        own = "from jobs import digits\n\ndef get_config():\n    config = digits.get_config()\n    config.seed = {}\n"
        (tmp_path / "jobs" / "own.py").write_text(own.format(seed) + "    return config\n")
        assert c.load_config("jobs/own.py").seed == seed


def test_own_configs_are_found_from_any_folder_and_one_s_own_start_from_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in c.own_configs():
        assert c.load_config(f"configs/{name}") == c.load_config(ROOT / "configs" / name)
    refused(lambda: c.load_config("configs/digts.py"), "'configs/digts.py': did you mean 'configs/digits.py'")
    Path("wide.py").write_text("from configs import digits\n\ndef get_config():\n    return digits.get_config()\n")
    assert c.load_config("wide.py").loss.gamma == 3.0
    (tmp_path / "configs").mkdir()
    Path("configs/digits.py").write_text("1 / 0")  # one's own goes before focalgeo's
    refused(
        lambda: c.load_config("configs/digits.py"), "configs/digits.py, line 1: ZeroDivisionError: division by zero"
    )


@pytest.mark.parametrize("code", ["def get_config():\n    return {}", "def get_job():\n    return {}"])
def test_a_file_without_a_config_is_one_line(code, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    refused(lambda: c.load_config("own.py"), "begin with focalgeo.config.default_config()")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = 1\ndef get_config(:", "own.py, line 2: SyntaxError: "),
        ("def get_config():\n    return defualt()", "own.py, line 2: NameError: name 'defualt' is not defined"),
        ("from focalgeo import config\nc = config.default_config()\nc.loss.gama.x = 1", "own.py, line 3: "),
        ("import json\n\njson.loads('{')", "own.py, line 3: JSONDecodeError"),
    ],
)
def test_code_of_a_config_file_that_fails_is_one_line_with_its_place(code, says, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    refused(lambda: c.load_config("own.py"), says)


def test_a_word_of_each_kind_is_chosen():
    kinds = {"loss": ("ce", "fl3"), "quick": ("quick",)}
    assert c.chosen("fl3, quick", "c.py", kinds) == {"loss": "fl3", "quick": "quick"}
    refused(lambda: c.chosen("quik", "c.py", kinds), "did you mean 'quick'?")
    refused(lambda: c.chosen("ce,fl3", "c.py", kinds), "'ce' and 'fl3'")


def test_words_between_commas_are_as_many_names():
    flags = ["--config.evaluation.criteria=nll,ece", "--config.data.name=digits"]
    assert c.parse_arguments(flags, {})[0] == {"evaluation.criteria": ("nll", "ece"), "data.name": "digits"}
