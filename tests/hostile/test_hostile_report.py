"""Random rows and manifests of somebody else: a page of the report's own elements alone, or one line of InputError."""

import json

import pytest
from hostile.pages import EVIL, VOCABULARY, Page, check_page, check_workdir, few_rows, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic_workdir import (
    NAMES,
    attribution_rows,
    calibration_rows,
    curvature_rows,
    density_rows,
    diagnosis_rows,
    search_arrays,
    training_rows,
    write_workdir,
)

from focalgeo import records
from focalgeo.report import axes, merge_workdirs, panels, results_text, sweep_text, write_report
from focalgeo.report.style import short
from focalgeo.rows import Metric, tagged, to_json
from focalgeo.types import InputError

pytestmark = pytest.mark.long

GOOD = [
    row
    for rows in (calibration_rows(), training_rows()[-8:], curvature_rows(), attribution_rows(), diagnosis_rows())
    for row in rows
]
GOOD += list(density_rows())[::10]
TEXTS = st.one_of(
    st.sampled_from([EVIL, "x/../../../f", "$\\frac$", "test", "val", "uncalibrated", "ece", "", "x" * 5000, "\u202e"]),
    st.text(st.characters(codec=None), max_size=12),  # with control characters and halves of pairs
)
NUMBERS = st.one_of(
    st.sampled_from([0, 1, -1, 0.5, 1e-320, 3e38, -3e38, 1e308, 2**53, 10**400, 360]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(),
)
VALUES = st.one_of(TEXTS, NUMBERS, st.none(), st.booleans())
JSON = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
PARTS = st.sampled_from(
    ["config", "methods", "metrics", "calibration", "data", "command", "runs", "loss_values", "git"]
)


@st.composite
def lines(draw):
    """Rows as JSON objects, of which one field in ten has another value of its own kind or of any."""
    found = []
    for row in draw(st.lists(st.sampled_from(GOOD), min_size=1, max_size=12)):
        fields = {**to_json(row), **draw(st.sampled_from([{}, {}, {"gamma": 0.0, "seed": 0}, {"epoch": 3.0}]))}
        for name in draw(st.lists(st.sampled_from(sorted(set(fields) - {"kind"})), max_size=2)):
            like = TEXTS if isinstance(fields[name], str) else NUMBERS
            fields[name] = draw(st.one_of(like, like, like, VALUES))
        found.append(fields)
    return found


@st.composite
def manifests(draw):
    """A manifest with the names that are known, a sweep or a calibration, and a part of any shape."""
    own = draw(
        st.sampled_from(
            [{}, {"config": {"sweep": {"gamma": [0.0, 1.0], "seed": [0]}}}, {"calibration": {}}, {"runs": ["a", "b"]}]
        )
    )
    entries = {draw(PARTS): draw(JSON)} if draw(st.booleans()) else {}
    titled = {"methods": {**NAMES["methods"], draw(TEXTS): {"title": draw(TEXTS)}}}
    return {**NAMES, **titled, **own, **entries}


def report_or_refusal(folder, rows, manifest):
    """Whether a page came of a workdir; an InputError leaves nothing written."""
    write(folder, rows, manifest)
    before = {path.name for path in folder.iterdir()}
    try:
        write_report(folder)
    except InputError:
        assert {path.name for path in folder.iterdir()} == before
        return False
    return True


@pytest.fixture
def drawn_fast(monkeypatch):
    """Figures are made and not drawn, which takes most of the time."""
    monkeypatch.setattr(panels, "to_svg", lambda figure: '<svg viewBox="0 0 1 1"><g id="a"/></svg>')


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(lines(), manifests())
def test_any_rows_give_a_page_or_one_line(drawn_fast, tmp_path_factory, rows, manifest):
    folder = tmp_path_factory.mktemp("fuzz") / "w"
    if report_or_refusal(folder, rows, manifest):
        check_workdir(folder.parent)
        found = records.read_rows(folder)
        results_text(found, manifest, "test")
        if axes.is_sweep(manifest):
            sweep_text(found, manifest)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(TEXTS, st.sampled_from(["entropy", "spectral_density", "reliability", "trace", "loss"]))
def test_any_split_or_method_is_drawn(tmp_path_factory, text, name):
    folder = tmp_path_factory.mktemp("fuzz") / "w"
    rows = [row for row in GOOD if row.name == name][:6]
    changed = {field: text for field in ("split", "method", "loss") if getattr(rows[0], field, None)}
    assert report_or_refusal(folder, [*rows, *(row._replace(**changed) for row in rows)], NAMES)
    check_workdir(folder.parent)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(lines(), min_size=2, max_size=2), st.lists(manifests(), min_size=2, max_size=2))
def test_any_two_workdirs_are_merged_or_refused(tmp_path_factory, rows, found):
    folder = tmp_path_factory.mktemp("fuzz")
    parts = [write(folder / name, *each) for name, each in zip("ab", zip(rows, found, strict=True), strict=True)]
    try:
        merged = merge_workdirs(parts, folder / "m")
    except InputError:
        assert not (folder / "m").exists()
    else:
        assert len(records.read_rows(merged)) == sum(map(len, rows))


@given(st.text(st.characters(codec=None)), st.text(st.characters(codec=None)), st.integers(12, 80))
def test_short_texts_are_printable_and_differ_where_texts_do(first, second, most):
    for text in (first, second):
        assert len(short(text, most)) <= most
        assert short(text, most).encode().decode() == short(text, most)
        assert not {"\n", "\x00", "\u202e"} & set(short(text, most))
    if len(first) > most and len(second) > most:
        assert (short(first, most) == short(second, most)) == (first == second)


def test_the_vocabulary_is_that_of_good_pages(tmp_path):
    groups = [Metric("group_ece", 0.1, 0.05, 0.2, 40, "test", "uncalibrated", group="g")]
    write_workdir(tmp_path / "run", extra=groups)
    page = check_page(write_report(tmp_path / "run").read_text())
    rows = [row for gamma in (0.0, 1.0) for row in tagged([*GOOD, *few_rows()], gamma=gamma, seed=0)]
    sweep = {**NAMES, "command": ["x"], "config": {"sweep": {"gamma": [0.0, 1.0]}}}
    calibrated = {**NAMES, "calibration": {"warnings": ["w"], "choice": {"method": "uncalibrated"}}}
    found = dict(page.elements)
    for name, own, manifest in (("s", rows, sweep), ("c", [*few_rows(), *groups], calibrated)):
        write(tmp_path / name, own, manifest)
        records.write_arrays(tmp_path / name, "search", search_arrays())
        elements = Page(write_report(tmp_path / name).read_text()).elements
        found = {tag: found.get(tag, set()) | elements.get(tag, set()) for tag in {**found, **elements}}
    assert {tag: VOCABULARY[tag] - names for tag, names in found.items() if VOCABULARY[tag] != names} == {}
    assert set(found) == set(VOCABULARY)
    assert json.loads((tmp_path / "s" / "manifest.json").read_text()) == sweep
