"""Workdirs of somebody else under `python -m focalgeo.report`: names, numbers, manifests, merges, arguments."""

import json
import os
import shutil

import numpy as np
from hostile.cases import Case
from hostile.pages import EVIL, Page, check_workdir, few_rows, metric_entry, with_figure, write
from synthetic_workdir import (
    NAMES,
    attribution_rows,
    curvature_rows,
    density_rows,
    diagnosis_rows,
    search_arrays,
)

from focalgeo.rows import Difference, Fit, Metric, Seconds, tagged

SWEPT = {**NAMES, "config": {"sweep": {"gamma": [0.0, 1.0], "seed": [0]}}}
LONG = "x" * 10**6
HIDDEN = {
    "NUL": "a\x00b",
    "lone surrogate": "a\ud800b",
    "turned direction": "\u202e\u2066gnp.exe",
    "new lines": "a\nb\r\nfocalgeo: all is well",
    "terminal codes": "\x1b]0;pwned\x07\x1b[31m",
    "mathtext": "$\\frac$",
    "half mathtext": "$\\frac",
    "template": "{{ 7 * 7 }}{% raw %}%s{0}",
    "a million letters": LONG,
    "nothing": "",
    "private tags": "_nolegend_ &lt; &#x3c;script",
}


def report(rows, manifest=None, **changes):
    """A case's maker: a report on rows with fields changed."""

    def make(folder):
        write(folder / "w", rows() if callable(rows) else rows, manifest, **changes)
        return ["report", "w"]

    return make


def shown(name, rows, manifest=None, *, says="report.html", check=check_workdir, kind="hostile file", **changes):
    """A case that has a page, with nothing in it but the report's own elements."""
    return Case(kind, name, report(rows, manifest, **changes), says, 0, check=check)


def refused(name, says, rows=few_rows, manifest=None, *, kind="traceback", **changes):
    """A case of a row or a manifest that no report is made of."""
    return Case(kind, name, report(rows, manifest, **changes), says)


def of_one(field, value, rows):
    """Rows of which those of the split val have another value of a field."""
    return lambda: [row._replace(**{field: value}) if getattr(row, "split", "") == "val" else row for row in rows()]


def diagnosed():
    """Rows of one diagnostic figure."""
    return [row for row in diagnosis_rows() if row.name == "entropy" and row.outcome]


def wrong():
    """Rows of the figure of a sweep whose file name holds the split."""
    found = [row for row in diagnosis_rows() if row.name == "true_class_probability" and row.outcome == "wrong"]
    return tagged([row for row in found if row.split == "val"], gamma=0.0, seed=0)


def has(text):
    """A check that the page shows a text as a text."""

    def check(folder):
        check_workdir(folder)
        assert text in "".join(Page((folder / "w" / "report.html").read_text()).words)

    return check


def linked(folder):
    """A workdir whose figures are a link to a folder elsewhere."""
    write(folder / "w", with_figure())
    (folder / "elsewhere").mkdir()
    (folder / "w" / "figures").symlink_to(folder / "elsewhere")
    return ["report", "w"]


def linked_page(folder):
    """A workdir whose report.html is a link to a file elsewhere."""
    write(folder / "w", few_rows())
    (folder / "precious").write_text("precious")
    (folder / "w" / "report.html").symlink_to(folder / "precious")
    return ["report", "w"]


def is_precious(folder):
    """The file that was linked is as it was."""
    assert (folder / "precious").read_text() == "precious"
    check_workdir(folder)


def searched(**arrays):
    """A maker of a workdir with a search of which arrays are changed."""

    def make(folder):
        write(folder / "w", few_rows())
        np.savez(folder / "w" / "search.npz", **{**search_arrays(), **arrays})
        return ["report", "w"]

    return make


def bad_search(name, kind="traceback", **arrays):
    return Case(kind, name, searched(**arrays), "search.npz does not hold gammas")


def member(gamma, **tags):
    """The rows of one member."""
    return tagged([*few_rows(), Seconds("seconds", "evaluate", 1.0)], gamma=gamma, seed=0, **tags)


def merged(*arguments, calibrated=(), other=(), copies=(), **manifests):
    """A maker of the workdirs a (gamma 0), b (gamma 1) and copies of a, and a report with these arguments."""

    def make(folder):
        for number, name in enumerate("ab"):
            manifest = {**SWEPT, **({"calibration": {}} if name in calibrated else {}), **manifests.get(name, {})}
            write(folder / name, member(float(number)), manifest)
        for name in copies:
            shutil.copytree(folder / "a", folder / name)
        for name in other:
            (folder / name).write_text("something else")
        return ["report", *arguments]

    return make


def merges(folder):
    """The merge holds both members."""
    check_workdir(folder, "m")
    rows = [json.loads(line) for line in (folder / "m" / "metrics.jsonl").read_text().splitlines()]
    assert {row["gamma"] for row in rows} == {0.0, 1.0}


def alone(*arguments):
    return lambda folder: ["report", *arguments]


def named_in_bytes(folder):
    name = os.fsdecode(b"w\xff\n")
    write(folder / name, few_rows())
    return ["report", name]


def a_file(folder):
    (folder / "w").write_text("")
    return ["report", "w"]


def no_manifest(folder):
    (folder / "w").mkdir()
    return ["report", "w"]


def config(**swept):
    return {**NAMES, "config": {"sweep": swept}}


def many(field, count):
    return lambda: [few_rows(**{field: f"m{number}"})[0] for number in range(count)]


def many_groups():
    return few_rows() + [
        Metric("group_ece", 0.1 + number / 10**5, 0.05, 0.3, 40, "test", "uncalibrated", group=f"g{number} {EVIL}")
        for number in range(3000)
    ]


def many_members():
    return [row for gamma in range(100) for row in tagged(few_rows()[:2], gamma=float(gamma), seed=0)]


HUGE = [
    ("n of -3", "has n -3", {"n": -3}),
    ("n of 10^30", r"has n 1e\+30", {"n": 10**30}),
    ("an ECE of 1e308", r"has value 1e\+308", {"value": 1e308}),
    ("a step of 2^62", r"has step 4.61169e\+18", {"step": 2**62}),
    ("a step below 0", "has step -7", {"step": -7}),
    ("an epoch below 0", "has epoch -1", {"epoch": -1.0}),
    ("low above high", "has low above high", {"low": 0.9, "high": 0.1}),
]


def nested(levels):
    """A manifest with a config of so many objects, and as many lists, inside each other."""
    return {**NAMES, "config": {"x": json.loads('{"a":' * levels + "[" * levels + "]" * levels + "}" * levels)}}


MANIFESTS = [
    ("10^9 digits", "metrics.ece.digits is not from 0 to 12", metric_entry(digits=10**9)),
    ("digits below 0", "metrics.ece.digits is not from 0 to 12", metric_entry(digits=-1)),
    ("a scale of 1e308", "metrics.ece.scale is not", metric_entry(scale=1e308)),
    ("a scale of 0", "metrics.ece.scale is not from", metric_entry(scale=0)),
    ("a scale below 0", "metrics.ece.scale is not from", metric_entry(scale=-1.0)),
    ("a scale that is a truth", "metrics.ece.scale is not a number", metric_entry(scale=True)),
    ("neither low nor high is best", "metrics.ece.best is neither", metric_entry(best="__class__")),
    ("a metric's title that is a list", "metrics.ece.title is not a text", metric_entry(title=["ECE"])),
    ("a sweep of texts", "each of config.sweep.gamma is not a number", config(gamma=["x", 1])),
    ("a sweep of lists", "each of config.sweep.gamma is not a number", config(gamma=[[1], [2]])),
    ("a sweep of nothing but 1e308", "config.sweep.gamma holds a number beyond float32", config(gamma=[1e308])),
    ("runs that are numbers", "each of runs is not a text", {**NAMES, "runs": [1, 2]}),
    ("a choice that is a list", "calibration.choice is not an object", {**NAMES, "calibration": {"choice": []}}),
    ("warnings that are a number", "warnings is not a list", {**NAMES, "calibration": {"warnings": 3}}),
    ("a trained gamma of text", "trained_gamma is not a number", {**NAMES, "calibration": {"trained_gamma": "x"}}),
    ("a gamma of text", "config.loss.gamma is not a number", {"config": {"loss": {"gamma": "3"}}}),
    ("a command of objects", "each of command is not a text", {**NAMES, "command": [{"x": []}]}),
    ("a commit that is an object", "git is not a text", {**NAMES, "git": {"x": 1}}),
    ("a config nested too deep", "it is nested too deep", nested(200)),
    ("a method chosen by number", "choice.method is not a text", {**NAMES, "calibration": {"choice": {"method": 1}}}),
]
IN_MANIFEST = {
    **NAMES,
    "methods": {"uncalibrated": {"title": EVIL}},
    "metrics": {"ece": {"title": EVIL, "unit": "%d{0}", "note": "</small><script>"}},
    "data": {"name": EVIL},
    "config": {EVIL: {EVIL: [EVIL, None, {}]}, "loss": {"name": EVIL}, "model": [EVIL, True]},
    "command": [EVIL, ""],
    "git": EVIL,
    "loss_values": ["gamma", EVIL],
}
CALIBRATED = {
    **IN_MANIFEST,
    "calibration": {
        "split": "test",
        "choice": {"method": EVIL, "criterion": EVIL, "parameters": {EVIL: [EVIL, "</code><script>"]}},
        "warnings": ["</li><script>", ""],
        "trained_gamma": 1e-300,
    },
}

CASES = [
    shown("a split of markup in a file name", of_one("split", EVIL, wrong), SWEPT),
    shown("a split of a path in a file name", of_one("split", "x/../../../f", wrong), SWEPT),
    shown("a split of a path in a density", of_one("split", "x/../../../f", density_rows)),
    shown("a split of markup in a figure's text", of_one("split", EVIL, diagnosed), says="report.html"),
    shown("a split of a formula", of_one("split", "$\\frac$", diagnosed), kind="traceback"),
    shown("a split of half a pair", of_one("split", "a\ud800", diagnosed), kind="traceback"),
    *(shown(f"a method of {what}", few_rows(method=text)) for what, text in HIDDEN.items()),
    *(
        shown(
            f"a group of {what}",
            [Metric("group_ece", 0.1, 0.05, 0.2, 40, "test", "uncalibrated", group=text)],
            CALIBRATED,
        )
        for what, text in [*HIDDEN.items(), ("markup", EVIL)][::2]
    ),
    shown("a method of a long name in a figure", with_figure(method="y" * 300), kind="traceback"),
    shown("two methods of one file name", [*with_figure(method="a/b"), *with_figure(method="a?b")]),
    shown("methods that differ after 100 letters", [*few_rows(method="m" * 100), *few_rows(method="m" * 100 + "2")]),
    shown("a loss of markup", [next(curvature_rows())], loss=EVIL),
    shown("a part of markup", [row for row in attribution_rows() if row.name == "attribution"][:3], part=EVIL),
    shown("a phase of markup", [*few_rows(), Seconds("seconds", EVIL, 1.0)]),
    shown("a fitted number of markup", [*few_rows(method="m"), Fit(EVIL, 1.0, 9, "val", "m")]),
    shown(
        "a comparison with markup",
        [*few_rows(), Difference("ece_difference", -0.1, -0.2, -0.05, 0.01, 360, "test", "uncalibrated", EVIL)],
    ),
    shown("markup everywhere in the manifest", few_rows(), IN_MANIFEST, check=has('x"><script>')),
    shown(
        "markup everywhere in a calibration",
        [*few_rows(), Metric("group_ece", 0.1, split="test", method=EVIL, group="g")],
        CALIBRATED,
    ),
    shown("a config deeper than a page", few_rows(), nested(8), kind="traceback"),
    shown("a config of 10,000 fields", few_rows(), {**NAMES, "config": {f"f{n}": [n] * 50 for n in range(10_000)}}),
    shown(
        "names of the object itself",
        few_rows(method="__class__"),
        {**NAMES, "methods": {"__class__": {}, "format": {"title": ""}}},
    ),
    shown("a method that the manifest lacks", few_rows(method="nowhere"), {**NAMES, "methods": {}}),
    shown("metrics without titles", few_rows(), {**NAMES, "metrics": {"ece": {}}}),
    shown("no manifest entries at all", few_rows(), {}),
    shown("accuracy without its examples", few_rows(), n=None, kind="traceback"),
    shown("no rows", [], NAMES),
    shown("every row twice", [*few_rows(), *few_rows()], NAMES),
    shown("wall times alone", [Seconds("seconds", "train", 3.0)], NAMES),
    shown("members that the config lacks", tagged(few_rows(), gamma=7.0, seed=3), SWEPT),
    shown("3,000 groups", many_groups, {**NAMES, "calibration": {}}, kind="no end"),
    shown("100 values of a sweep", many_members, config(gamma=[float(each) for each in range(100)]), kind="no end"),
    refused("thousands of methods", "more than 20 values of method", many("method", 3000), kind="no end"),
    refused("thousands of splits", "more than 12 values of split", many("split", 3000), kind="no end"),
    refused(
        "thousands of methods in the manifest",
        "methods has more than 20 entries",
        few_rows,
        {**NAMES, "methods": {f"m{n}": {} for n in range(3000)}},
        kind="no end",
    ),
    refused(
        "a sweep of a million members",
        "more than 2,000 combinations",
        few_rows,
        config(gamma=list(range(1000)), seed=list(range(1000))),
        kind="no end",
    ),
    *(refused(name, says, **changes) for name, says, changes in HUGE),
    refused("a bin of 10^20", r"has bin 1e\+20", lambda: with_figure()[-1:], bin=10**20),
    refused("a bin of -1", "has bin -1", lambda: with_figure()[-1:], bin=-1),
    refused("a reliability bin of no examples", "has n 0, not from 1", lambda: with_figure()[-1:], n=0),
    refused("a residual below 0", "has residual -1", lambda: [next(curvature_rows())], residual=-1.0),
    refused("a wall time below 0", "has value -1", [Seconds("seconds", "train", -1.0)]),
    *(refused(name, says, few_rows, manifest) for name, says, manifest in MANIFESTS),
    bad_search(
        "a search of nothing", gammas=np.zeros(0), temperatures=np.zeros(0), ece=np.zeros((0, 0)), nll=np.zeros((0, 0))
    ),
    bad_search("a search at NaN", gammas=np.full(6, np.nan)),
    bad_search("a search at a temperature of 0", temperatures=np.arange(100.0)),
    bad_search("a search of NaN", ece=np.full((6, 100), np.nan)),
    bad_search("a search of texts", ece=np.full((6, 100), "x")),
    bad_search("a search of complex numbers", nll=np.ones((6, 100), complex)),
    bad_search("a search of axes without order", temperatures=np.ones(100)),
    Case("hostile file", "figures that are a link", linked, "figures is a link"),
    Case("hostile file", "a page that is a link", linked_page, "report.html", 0, check=is_precious),
    Case("wrong result", "a merge of two shards", merged("a", "b", "--out=m"), "m/report.html", 0, check=merges),
    Case("wrong result", "one workdir twice", merged("a", "./a/", "--out=m"), r"(\./)?a/? is named twice"),
    Case(
        "wrong result",
        "the same member twice",
        merged("a", "c", "--out=m", copies="c"),
        "c and a both hold the run",
    ),
    Case("wrong result", "a merge into one of its workdirs", merged("a", "b", "--out=./a"), "is one of the workdirs"),
    Case(
        "wrong result",
        "a merge inside of one of its workdirs",
        merged("a", "b", "--out=a/m"),
        "lies inside the workdir",
    ),
    Case("traceback", "a merge into a file", merged("a", "b", "--out=f", other="f"), "--out=f is a file"),
    Case("traceback", "a merge below a file", merged("a", "b", "--out=f/m", other="f"), "cannot write f/m"),
    Case("unhelpful line", "a merge into a folder in use", merged("a", "b", "--out=."), "holds something else"),
    Case("unhelpful line", "a merge into nowhere", merged("a", "b", "--out="), "--out= is empty"),
    Case("unhelpful line", "a merge into two folders", merged("a", "b", "--out=m", "--out=m"), "--out is given twice"),
    Case("traceback", "a merge into a name too long", merged("a", "b", f"--out={'m' * 300}"), "File name too long"),
    Case(
        "wrong result",
        "a calibration among runs",
        merged("a", "b", "--out=m", calibrated="b"),
        "made by focalgeo.calibrate",
    ),
    Case(
        "wrong result",
        "a merge of runs among runs",
        merged("a", "b", "--out=m", b={"runs": ["c", "d"]}),
        "itself a merge",
    ),
    Case(
        "wrong result",
        "other data under one name",
        merged("a", "b", "--out=m", b={"data": {"checksum": "x"}}),
        "other data",
    ),
    Case(
        "traceback",
        "a sweep that is a list",
        merged("a", "b", "--out=m", b={"config": {"sweep": [1]}}),
        "config.sweep is not an object",
    ),
    Case(
        "unhelpful line", "an unknown flag of report", alone("--what", "w"), "--what is no argument: give one workdir"
    ),
    Case("unhelpful line", "a workdir of no name", alone(""), "the name of a workdir is empty"),
    Case("unhelpful line", "several workdirs without --out", alone("a", "b"), "several workdirs need a new folder"),
    Case("unhelpful line", "a workdir that is missing", alone("nowhere"), "cannot read nowhere/manifest.json"),
    Case("unhelpful line", "a workdir that is a file", a_file, "w is a file, not a workdir"),
    Case("unhelpful line", "a folder without a manifest", no_manifest, "cannot read w/manifest.json"),
    Case("traceback", "a workdir of a name too long", alone("w" * 5000), "cannot read w.*File name too long"),
    Case("traceback", "a workdir of a name of other bytes", named_in_bytes, r"\\udcff\\n/report.html", 0),
]
