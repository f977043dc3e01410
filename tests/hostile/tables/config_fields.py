"""Config files and config fields: what a file may hold, what a field may hold, what fits memory and ends."""

import os
import re

from hostile.cases import ROOT, Case

QUICK = f"--config={ROOT}/configs/digits.py:quick"
SWEEP = f"--config={ROOT}/configs/digits_gamma.py:quick"
HEAD = """import sys
import numpy as np
from ml_collections import ConfigDict, config_dict
from focalgeo.config import default_config

def get_config():
    c = default_config()
    c.data.train_size = 40
"""


def flags(*arguments):
    """The digits job, two epochs, with these arguments."""
    return lambda folder: ["run", QUICK, "--workdir=w", *arguments]


def sweep(*arguments):
    """The sweep of gamma on digits with these arguments."""
    return lambda folder: ["run", SWEEP, "--workdir=w", *arguments]


def only(*arguments):
    """These arguments alone."""
    return lambda folder: ["run", *arguments]


def field(name, value):
    """The digits job with one field set."""
    return flags(f"--config.{name}={value}")


def source(text, *arguments, name="own.py"):
    """A config file with this text, or these bytes."""

    def make(folder):
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
        return ["run", f"--config={name}", "--workdir=w", *arguments]

    return make


def sets(*lines):
    """A config file that sets fields so."""
    return source(HEAD + "".join(f"    {line}\n" for line in lines) + "    return c\n")


def raises(line):
    """A config file whose get_config has this line."""
    return source(f"import sys\n\ndef get_config():\n    {line}\n")


def fifo(folder):
    """A pipe in a config file's place, which gives nothing for ever."""
    os.mkfifo(folder / "own.py")
    return ["run", "--config=own.py", "--workdir=w"]


def directory(folder):
    """A folder in a config file's place."""
    (folder / "own.py").mkdir()
    return ["run", "--config=own.py", "--workdir=w"]


def misnamed(folder):
    """Two config files, and the name of none."""
    (folder / "digits.py").write_text("")
    (folder / "newsgroups.py").write_text("")
    return ["run", "--config=digit.py", "--workdir=w"]


def many(count, first=0):
    """So many values of an axis."""
    return ",".join(map(str, range(first, first + count)))


NO_GET_CONFIG = r"own\.py has no get_config"
FILES = [
    Case(
        "wrong result",
        "more products than xtrace takes",
        flags("--config.curvature.trace_method=xtrace", "--config.curvature.num_probes=1002"),
        r"config\.curvature\.num_probes is 1002: xtrace takes at most 1,000",
    ),
    Case(
        "wrong result",
        "weights of classes that are all 0",
        field("loss.alpha", f"({'0,' * 10})"),
        r"config\.loss\.alpha is .*: it must hold finite weights.* one above 0",
    ),
    Case(
        "traceback",
        "a calibration grid that descends",
        field("evaluation.gammas", "3,0"),
        r"config\.evaluation\.gammas is \(3\.?0?, 0\.?0?\): it must ascend",
    ),
    Case(
        "wrong result",
        "a whole number with an underscore",
        field("optimizer.epochs", "1_0"),
        r"config\.optimizer\.epochs is 1_0: it must be a whole number",
    ),
    Case(
        "wrong result",
        "a whole number in hexadecimal digits",
        field("optimizer.epochs", "0x10"),
        r"config\.optimizer\.epochs is 0x10: it must be a whole number",
    ),
    Case(
        "unhelpful line",
        "a tuple that holds no literal",
        field("sweep.gamma", "(nan,)"),
        r"config\.sweep\.gamma is \('nan',\): it must hold numbers",
    ),
    Case("unhelpful line", "an empty config file", source(""), NO_GET_CONFIG),
    Case("unhelpful line", "a config file without get_config", source("def get_job():\n    pass\n"), NO_GET_CONFIG),
    Case("unhelpful line", "a get_config that is no function", source("get_config = 3\n"), NO_GET_CONFIG),
    Case("traceback", "a get_config that returns a dict", raises("return {'seed': 1}"), r"get_config .*returns a dict"),
    Case("traceback", "a get_config that returns nothing", raises("pass"), r"get_config .*returns a NoneType"),
    Case("traceback", "a config without a section", sets("del c.curvature"), r"config\.curvature\.splits is missing"),
    Case("traceback", "a config without a field", sets("del c.loss.gamma"), r"config\.loss\.gamma is missing"),
    Case("traceback", "a value where a section goes", sets("c.loss = 3"), r"config\.loss is 3: it must be a section"),
    Case(
        "traceback", "text where options go", sets("c.model.options = 'a'"), r"config\.model\.options is a: it must be"
    ),
    Case(
        "traceback", "nothing where a section goes", sets("c.optimizer = None"), r"config\.optimizer is None: it must"
    ),
    Case("traceback", "a section where a value goes", sets("c.seed = {'a': 1}"), r"config\.seed .*a whole number"),
    Case("traceback", "an empty section for a value", sets("c.seed = ConfigDict()"), r"config\.seed .*a whole number"),
    Case("traceback", "a section of its own", sets("c.mine = {'a': 1}"), r"no such config field: config\.mine"),
    Case("traceback", "an empty section of its own", sets("c.mine = {}"), r"no such config field: config\.mine"),
    Case("traceback", "an object for a value", sets("c.seed = object()"), r"config\.seed is <object.*a whole number"),
    Case(
        "traceback", "an object for an option", sets("c.model.options.hidden = object()"), r"options\.hidden is <object"
    ),
    Case(
        "traceback",
        "a section for an option",
        sets("c.model.options.hidden = {'a': 1}"),
        r"config\.model\.options\.hid",
    ),
    Case(
        "traceback",
        "a set for an option",
        sets("c.model.options.hidden = {8, 9}"),
        r"config\.model\.options\.hidden is",
    ),
    Case("traceback", "a function for a name", sets("c.loss.name = print"), r"config\.loss\.name is <built-in.*text"),
    Case("traceback", "bytes for a name", sets("c.data.name = b'digits'"), r"config\.data\.name is b'digits'.*text"),
    Case("traceback", "an array of several lines", sets("c.sweep.gamma = np.eye(30)"), r"config\.sweep\.gamma is \[\["),
    Case(
        "traceback",
        "an object that cannot be shown",
        sets("c.seed = type('Odd', (), {'__repr__': lambda self: 1 / 0})()"),
        r"config\.seed is a value of type Odd: it must be a whole number",
    ),
    Case(
        "traceback",
        "a reference without a value",
        sets("c.seed = config_dict.required_placeholder(int)"),
        r"config\.seed .*no value",
    ),
    Case(
        "traceback",
        "a reference that divides by zero",
        sets("c.seed = 1", "c.loss.gamma = 1 / (c.get_ref('seed') - 1)"),
        r"own\.py, line 10: ZeroDivisionError",
    ),
    Case("traceback", "a config that holds itself", sets("c.loss.mine = c"), r"config\.loss\.mine"),
    Case(
        "traceback", "a whole number beyond float64", sets("c.loss.gamma = 10**400"), r"own\.py, line 9: OverflowError"
    ),
    Case("traceback", "a whole number of 5,000 digits", sets("c.seed = 10**5000"), r"config\.seed is"),
    Case(
        "traceback", "a hidden width of 5,000 digits", sets("c.model.options.hidden = 10**5000"), r"options\.hidden is"
    ),
    Case("traceback", "a tuple that holds 10^400", sets("c.loss.gammas = (10**400, 1.0)"), r"config\.loss\.gammas is"),
    Case("unhelpful line", "an error without words", raises("raise ValueError"), r"own\.py, line 4: ValueError$"),
    Case("unhelpful line", "an error of 10,000 letters", raises("raise ValueError('x' * 10_000)"), "line 4: ValueErr"),
    Case("unhelpful line", "an input error of 10,000 lines", raises("assert 0, 'x\\n' * 10_000"), "line 4: AssertionE"),
    Case(
        "traceback",
        "an error that cannot be shown",
        source("class Odd(Exception):\n    def __str__(self):\n        return 1 / 0\n\nraise Odd\n"),
        r"own\.py, line 5: Odd",
    ),
    Case(
        "traceback", "sys.exit in a config file", source("import sys\nsys.exit(0)\n"), r"own\.py, line 2: SystemExit: 0"
    ),
    Case("traceback", "sys.exit in get_config", raises("sys.exit('done')"), r"own\.py, line 4: SystemExit: done"),
    Case(
        "traceback", "KeyboardInterrupt in get_config", raises("raise KeyboardInterrupt"), "line 4: KeyboardInterrupt"
    ),
    Case("traceback", "BaseException in get_config", raises("raise BaseException('no')"), "line 4: BaseException: no"),
    Case("traceback", "a get_config that calls itself", raises("return get_config()"), "line 4: RecursionError"),
    Case("traceback", "a config file that empties sys.path", source("import sys\nsys.path.clear()\n"), NO_GET_CONFIG),
    Case("traceback", "a config file of wrong syntax", source("def get_config(:\n"), r"own\.py.*SyntaxError.*line 1"),
    Case("traceback", "a config file nested too deep", source("x = " + "(" * 9999 + ")" * 9999), r"own\.py.*Error"),
    Case("traceback", "a config file that is not UTF-8", source(b"x = '\xff\xfe'\n"), r"own\.py.*SyntaxError.*utf-8"),
    Case("traceback", "a config file with a zero byte", source(b"x = 1\x00\n"), r"own\.py.*null bytes"),
    Case(
        "unhelpful line", "a config file of another ending", source("", name="own.txt"), r"own\.txt.*must end with \.py"
    ),
    Case("unhelpful line", "a folder as config file", directory, r"own\.py.* is a folder"),
    Case("no end", "a pipe as config file", fifo, r"own\.py.* is no file"),
    Case("unhelpful line", "a config file that is missing", misnamed, r"digit\.py.*did you mean digits\.py"),
    Case(
        "unhelpful line", "a folder of configs that is missing", only("--config=no/a.py", "--workdir=w"), "no folder no"
    ),
    Case(
        "traceback", "a config file's name too long", only("--config=" + "a" * 300 + ".py", "--workdir=w"), "too long"
    ),
    Case("traceback", "a config file's name not UTF-8", only("--config=\udcff.py", "--workdir=w"), "no config file"),
    Case(
        "unhelpful line",
        "words for a get_config that takes none",
        lambda folder: [*sets()(folder)[:1], "--config=own.py:quick", "--workdir=w"],
        r"get_config of own\.py takes no words.*'quick'",
    ),
    Case(
        "unhelpful line",
        "a get_config that needs words",
        source("def get_config(words):\n    pass\n"),
        r"own\.py:WORDS",
    ),
    Case(
        "unhelpful line",
        "a config file that warns, of a wrong field",
        source(HEAD + "    import warnings\n    warnings.warn('old', stacklevel=1)\n    c.seed = -1\n    return c\n"),
        r"config\.seed is -1",
    ),
    Case(
        "unhelpful line",
        "a config file with a wrong escape",
        source("x = '\\d'\n" + HEAD + "    c.seed = -1\n    return c\n"),
        r"config\.seed is -1",
    ),
]

TYPES = [
    Case(
        "wrong result",
        "epochs of a half",
        sets("c.optimizer.epochs = 1.5"),
        r"optimizer\.epochs is 1\.5: it must be a who",
    ),
    Case(
        "wrong result",
        "epochs that are true",
        sets("c.optimizer.epochs = True"),
        r"optimizer\.epochs is True: it must be a",
    ),
    Case(
        "wrong result",
        "epochs as text",
        sets("c.optimizer.epochs = '3'"),
        r"optimizer\.epochs is 3: it must be a whole",
    ),
    Case(
        "wrong result",
        "epochs of NumPy's floats",
        sets("c.optimizer.epochs = np.float32(2)"),
        r"optimizer\.epochs is 2\.0",
    ),
    Case(
        "wrong result", "gamma that is true", sets("c.loss.gamma = True"), r"loss\.gamma is True: it must be a number"
    ),
    Case(
        "wrong result",
        "gamma that is not a number",
        sets("c.loss.gamma = float('nan')"),
        r"loss\.gamma is nan: it must",
    ),
    Case(
        "wrong result",
        "gamma of NumPy's truth",
        sets("c.loss.gamma = np.True_"),
        r"loss\.gamma is True: it must be a numb",
    ),
    Case(
        "wrong result",
        "nesterov as 1",
        sets("c.optimizer.nesterov = 1"),
        r"optimizer\.nesterov is 1: it must be true or fa",
    ),
    Case(
        "wrong result",
        "nesterov as text",
        sets("c.optimizer.nesterov = 'False'"),
        r"optimizer\.nesterov is False: it must",
    ),
    Case(
        "wrong result",
        "splits as one text",
        sets("c.curvature.splits = 'val'"),
        r"curvature\.splits is val: it must hold",
    ),
    Case(
        "wrong result",
        "gammas of truths",
        sets("c.loss.gammas = (True, False)"),
        r"loss\.gammas is \(True, False\): it m",
    ),
    Case(
        "wrong result",
        "a width of a half",
        sets("c.model.options.hidden = (8.5,)"),
        r"options\.hidden is \(8\.5,\): it must",
    ),
    Case(
        "wrong result",
        "a width that is true",
        sets("c.model.options.hidden = True"),
        r"options\.hidden is True: it must hold",
    ),
    Case(
        "wrong result",
        "a width of 0",
        sets("c.model.options.hidden = (8, 0)"),
        r"options\.hidden is \(8, 0\): it must hold",
    ),
    Case(
        "wrong result",
        "a width below 0",
        field("model.options.hidden", -8),
        r"options\.hidden is -8: it must hold whole num",
    ),
    Case(
        "wrong result",
        "a width as text",
        field("model.options.hidden", "wide"),
        r"options\.hidden is wide: it must hold",
    ),
    Case(
        "wrong result",
        "a swept seed of a half",
        sets("c.sweep.seed = (0, 0.5)"),
        r"sweep\.seed is \(0, 0\.5\): it must hold",
    ),
    Case("wrong result", "a swept gamma that is nan", field("sweep.gamma", "nan,1"), r"config\.sweep\.gamma.*nan"),
    Case("wrong result", "a swept gamma that is inf", field("sweep.gamma", "1,inf"), r"config\.sweep.*inf"),
    Case(
        "wrong result", "a swept gamma as 1 and 1.0", sets("c.sweep.gamma = (1, 1.0)"), r"sweep\.gamma is .*each once"
    ),
    Case("wrong result", "a swept gamma as 0 and -0", field("sweep.gamma", "0.0,-0.0"), r"sweep\.gamma is .*each once"),
]

INFINITIES = [
    Case(
        "traceback",
        f"{name}={value}",
        field(name, value),
        rf"config\.{name} is .*{re.escape(value)}.*: it must",
    )
    for name, value in (
        ("data.scale", "inf"),
        ("data.scale", "1e-320"),
        ("data.std", "1e-300"),
        ("data.mean", "nan"),
        ("data.mean", "1e+39"),
        ("loss.gamma", "1e+39"),
        ("loss.penalty_weight", "1e+39"),
        ("loss.boundaries", "inf"),
        ("loss.alpha", "inf"),
        ("optimizer.learning_rate", "inf"),
        ("optimizer.learning_rate", "1e-50"),
        ("optimizer.weight_decay", "inf"),
        ("optimizer.weight_decay", "1e+300"),
        ("optimizer.clip_norm", "inf"),
        ("optimizer.clip_norm", "nan"),
        ("optimizer.decay_epochs", "inf"),
        ("curvature.tolerance", "inf"),
        ("curvature.tolerance", "1e+30"),
        ("evaluation.max_temperature", "nan"),
    )
]

LARGE = 10**12
LIMITS = [
    Case("no end", f"{name}={value}", field(name, value), rf"config\.{name} is {re.escape(str(value))}: it must .*\d")
    for name, value in (
        ("evaluation.num_bins", 10**6),
        ("diagnostics.num_bins", 10**6),
        ("evaluation.num_resamples", 10**8),
        ("evaluation.temperature_step", "1e-06"),
        ("evaluation.temperature_step", "1e-12"),
        ("evaluation.max_temperature", "1e+30"),
        ("data.image_size", 100_000),
        ("data.max_length", LARGE),
        ("data.max_words", LARGE),
        ("optimizer.epochs", LARGE),
        ("optimizer.warmup_epochs", LARGE),
        ("optimizer.batch_size", LARGE),
        ("evaluation.batch_size", LARGE),
        ("curvature.batch_size", LARGE),
        ("curvature.density_probes", 10**9),
        ("curvature.density_steps", 10**9),
        ("curvature.num_probes", 10**9),
        ("curvature.max_products", 10**9),
        ("checkpoint.keep", 10**30),
        ("log_every", 10**30),
        ("seed", 2**31),
        ("seed", -1),
    )
]
MEMORY = [
    Case(
        "traceback",
        "a width that no memory holds",
        field("model.options.hidden", f"({10**11},)"),
        r"options\.hidden is",
    ),
    Case(
        "traceback", "widths that no memory holds", field("model.options.hidden", (10**6, 10**6)), r"GB.*model\.options"
    ),
    Case("traceback", "a width of 10^9", field("model.options.hidden", 10**9), r"GB.*config\.model\.options"),
    Case("no end", "5,000 layers", field("model.options.hidden", "1," * 5000), r"options\.hidden is .*at most"),
    Case(
        "no end",
        "a transformer of a billion blocks",
        flags("--config.model.name=vit", f"--config.model.options.depth={10**9}"),
        r"options\.depth is 1000000000: it must .*at most",
    ),
    Case(
        "traceback",
        "a batch that no memory holds",
        field("optimizer.batch_size", 2 * 10**9),
        r"optimizer\.batch_size is 2000000000.* GB.*lower it",
    ),
    Case(
        "traceback",
        "a batch in evaluation",
        field("evaluation.batch_size", 2 * 10**9),
        r"evaluation\.batch_size is 2000000000.* GB.*lower it",
    ),
    Case(
        "traceback",
        "a batch of curvature",
        field("curvature.batch_size", 2 * 10**9),
        r"curvature\.batch_size is 2000000000.* GB.*lower it",
    ),
    Case(
        "traceback",
        "a sweep whose states no memory holds",
        flags(
            "--config.model.options.hidden=(2000000,)",
            f"--config.sweep.seed={many(100)}",
            "--config.data.train_size=99",
        ),
        r"config\.sweep of 100 members.*GB",
    ),
    Case(
        "no end",
        "a sweep of a million members",
        flags(f"--config.sweep.seed={many(1000)}", f"--config.sweep.gamma={many(1000)}"),
        r"config\.sweep .*1,000,000 members.*at most",
    ),
    Case("no end", "more steps than int32 counts", field("optimizer.epochs", 2 * 10**8), r"optimizer\.epochs.*2\^31"),
    Case(
        "no end",
        "a grid of too many pairs",
        flags("--config.evaluation.temperature_step=0.001", "--config.evaluation.max_temperature=1000"),
        r"evaluation.*10,000,000 pairs.*at most.*temperature_step",
    ),
]

ARGUMENTS = [
    Case(
        "wrong result",
        "a field given twice",
        flags("--config.seed=1", "--config.seed=2"),
        r"--config\.seed is given twice",
    ),
    Case("wrong result", "a workdir given twice", flags("--workdir=x"), r"--workdir is given twice"),
    Case("wrong result", "a config given twice", flags(QUICK), r"--config is given twice"),
    Case("wrong result", "a shard given twice", sweep("--shard=0/2", "--shard=1/2"), r"--shard is given twice"),
    Case(
        "wrong result",
        "a truth given twice",
        flags("--config.optimizer.nesterov", "--noconfig.optimizer.nesterov"),
        r"--config\.optimizer\.nesterov is given twice",
    ),
    Case("unhelpful line", "an empty config", only("--config=", "--workdir=w"), r"--config is empty.*--config=configs"),
    Case(
        "unhelpful line",
        "words without a file",
        only("--config=:quick", "--workdir=w"),
        r"--config names a Python file",
    ),
    Case("unhelpful line", "an empty workdir", only(QUICK, "--workdir="), r"--workdir is empty.*--workdir=runs"),
    Case("unhelpful line", "an empty shard", sweep("--shard="), r"--shard is empty"),
    Case("unhelpful line", "a workdir without a value", only(QUICK, "--workdir"), r"--workdir.*--workdir=runs/digits"),
    Case("unhelpful line", "a workdir that is a flag", only("--workdir", QUICK), r"--workdir.*--workdir=runs/digits"),
    Case(
        "unhelpful line",
        "a field that is a flag",
        flags("--config.data.name", "--config.seed=1"),
        r"config\.data\.name=",
    ),
    Case("unhelpful line", "a field without a name", flags("--config.=3"), r"no such config field"),
    Case("unhelpful line", "a field's name of two lines", flags("--config.a\nb=3"), r"no such config field: config\.a"),
    Case(
        "unhelpful line",
        "a field's name of 10,000 letters",
        flags(f"--config.{'a' * 10_000}=3"),
        "no such config field",
    ),
    Case(
        "unhelpful line",
        "a value of 10,000 letters",
        flags(f"--config.seed={'a' * 10_000}"),
        r"config\.seed is aaa.*a whole",
    ),
    Case("unhelpful line", "a value of two lines", field("loss.name", "a\nb"), r"config\.loss\.name is 'a\\nb'"),
    Case("traceback", "a dict of lists", field("seed", "{[]: 1}"), r"config\.seed is \{\[\]: 1\}: it must be a whole"),
    Case("unhelpful line", "a value that Python warns of", field("seed", r"'\d'"), r"config\.seed is .*a whole number"),
    Case("unhelpful line", "an argument of no flag", flags("gamma=3"), r"unknown argument 'gamma=3'"),
    Case("unhelpful line", "an unknown flag", flags("--wordkir=x"), r"'wordkir'.*--workdir"),
    Case("unhelpful line", "a file of flags", flags("--flagfile=nothing"), r"[Uu]nknown .*'flagfile'"),
    Case("unhelpful line", "a shard of letters", sweep("--shard=a/b"), r"--shard=a/b: give i/n"),
    Case("unhelpful line", "a shard of none", sweep("--shard=0/0"), r"--shard=0/0: give i/n"),
    Case("wrong result", "a shard in other digits", sweep("--shard=٠/١"), r"--shard=٠/١: give i/n"),
    Case(
        "traceback", "a shard of 5,000 digits", sweep(f"--shard={'1' * 5000}/{'2' * 5000}"), r"--shard=1+.*: give i/n"
    ),
    Case(
        "unhelpful line",
        "a shard of a run without sweep",
        flags("--shard=0/2"),
        r"--shard=0/2: config\.sweep has no values",
    ),
]
CASES = FILES + TYPES + INFINITIES + LIMITS + MEMORY + ARGUMENTS
