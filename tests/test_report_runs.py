"""The page of a folder's runs, the CSV behind a table, a page's contents, and the texts that stand for figures."""

import csv
import html
import io
import os
import re
import shutil
from urllib.parse import unquote

import pytest
from hostile.pages import EVIL, check_page, scroll_width
from matplotlib.figure import Figure
from synthetic_workdir import MANIFEST, NAMES, write_workdir

from focalgeo.report import write_list, write_report
from focalgeo.report.__main__ import main
from focalgeo.report.alternatives import figure_text
from focalgeo.report.tables import NOTHING, Cell, Line, Table, as_csv
from focalgeo.types import InputError


def of_config(created, **changes):
    config = {**MANIFEST["config"], **changes}
    return {**MANIFEST, "created": created, "config": config}


@pytest.fixture(scope="module")
def listed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "runs"
    write_workdir(folder / "old", manifest=of_config("2026-01-01T10:00:00"))
    write_workdir(folder / "deeper" / "new", manifest=of_config("2026-02-01T10:00:00", seed=7))
    write_report(folder / "deeper" / "new")
    (folder / "broken").mkdir()
    (folder / "broken" / "manifest.json").write_text("{")
    return folder, write_list(folder).read_text()


def test_runs_are_listed_newest_first_with_links_verdicts_and_what_differs(listed):
    _, page = listed
    names = re.findall(r"<h2>(?:<a href=\"([^\"]*)\">)?([^<]*)(?:</a>)?</h2>", page)[1:]
    assert names == [("deeper/new/report.html", "deeper/new"), ("", "old"), ("", "broken")]
    assert page.count("the network classifies") == 2
    assert "2026-01-01 10:00" in page
    assert page.count("not finished") == 1
    assert re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page)[0] == ("seed", "7")
    assert {name for name, _ in re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page)} == {"seed"}


def test_a_run_that_cannot_be_read_is_listed_with_the_reason(listed):
    _, page = listed
    assert "cannot be read" in page
    assert "manifest.json" in page[page.index("broken") :]


def test_a_run_that_has_only_begun_is_listed_as_not_finished(tmp_path):
    write_workdir(tmp_path / "begun", manifest=of_config("2026-01-01T10:00:00"))
    (tmp_path / "begun" / "metrics.jsonl").unlink()
    page = write_list(tmp_path).read_text()
    assert "not finished" in page
    assert "cannot be read" not in page


def test_another_s_page_is_not_written_over(tmp_path):
    write_workdir(tmp_path / "run")
    (tmp_path / "index.html").write_text("<html>mine</html>")
    with pytest.raises(InputError, match="is another's page: move it away"):
        write_list(tmp_path)
    assert (tmp_path / "index.html").read_text() == "<html>mine</html>"
    (tmp_path / "index.html").unlink()
    assert write_list(tmp_path).read_text() == write_list(tmp_path).read_text()


def test_the_list_holds_what_the_templates_hold_and_nothing_else(listed, tmp_path):
    check_page(listed[1])
    folder = tmp_path / 'x"><b>'
    write_workdir(folder / "a'<b", manifest={**NAMES, "config": {"loss": {"name": EVIL}, EVIL: EVIL}})
    write_workdir(folder / "other")
    assert "<script>" not in check_page(write_list(folder).read_text()).words


def test_the_command_lists_a_folder_of_runs_and_refuses_one_without(listed, tmp_path, capsys):
    folder, page = listed
    (folder / "index.html").unlink()
    assert main([str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "index.html")
    assert (folder / "index.html").read_text() == page
    (tmp_path / "empty").mkdir()
    assert main([str(tmp_path / "empty")]) == 2
    assert "manifest.json" in capsys.readouterr().err
    with pytest.raises(InputError, match="is no workdir and holds none"):
        write_list(tmp_path / "empty")


def test_members_and_links_are_not_runs_of_their_own(listed, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(listed[0] / "old", folder / "sweep")
    shutil.copytree(listed[0] / "old", folder / "sweep" / "members" / "seed=1")
    (folder / "link").symlink_to(listed[0])
    assert "1 run," in write_list(folder).read_text()


def test_folders_of_any_name_are_linked_and_those_too_deep_are_not_looked_for(listed, tmp_path):
    folder = tmp_path / "runs"
    shutil.copytree(listed[0] / "deeper" / "new", folder / os.fsdecode(b"a \xff?#"))
    shutil.copytree(listed[0] / "old", folder / "1" / "2" / "3" / "4" / "5")
    page = write_list(folder).read_text()
    assert 'href="a%20%FF%3F%23/report.html"' in page
    assert "1 run," in page
    check_page(page)


def test_the_csv_behind_a_table_has_plain_numbers_and_the_ends_of_intervals():
    cells = [
        Cell("1,234.50", "[−1.00,\u00a02.00]", numbers=(1234.5, -1.0, 2.0)),
        Cell("−3.20%", numbers=(-3.2,)),
        Cell("3.1 × 10⁻⁷", "by hand", numbers=(3.14159e-7,)),
        Cell("-text"),
    ]
    heads = [("A", ""), ("B", "better"), ("C", ""), ("D", "")]
    table = Table(heads, [Line("one, two", "note", cells), Line("=SUM(A1)", "", [NOTHING] * 4)])
    rows = list(csv.reader(io.StringIO(as_csv(table, "Of"))))
    assert rows == [
        ["Of", "", "A", "A, low", "A, high", "B, %", "C", "C, note", "D"],
        ["one, two", "note", "1234.5", "-1", "2", "-3.2", "3.14159e-07", "by hand", "'-text"],
        ["'=SUM(A1)", "", "", "", "", "", "", "", ""],
    ]


def test_every_table_of_a_page_has_its_csv_and_every_section_its_link(tmp_path):
    write_workdir(tmp_path)
    page = write_report(tmp_path).read_text()
    addresses = re.findall(r'<a download="([^"]*)" href="data:text/csv;charset=utf-8,([^"]*)"', page)
    assert len(addresses) == page.count("<table>") > 1
    test = next(unquote(html.unescape(text)) for name, text in addresses if name == "test-split.csv")
    rows = list(csv.DictReader(io.StringIO(test)))
    assert float(rows[0]["ECE, low"]) <= float(rows[0]["ECE, %"])
    sections = re.findall(r'<section id="([^"]*)">', page)
    assert len(sections) == len(set(sections)) == page.count("<section")
    assert re.findall(r'<a href="#([^"]*)">', page) == sections


def test_a_figure_s_text_says_its_numbers():
    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2, 3], [0.5, 0.25, 1], label="training")
    axes.plot(range(20), [*range(10), 50, *range(9)], label="many")
    axes.set(xlabel="step", ylabel="loss")
    text = figure_text("Loss", figure)
    assert text.startswith("Loss. loss against step: training 0.5 at 1, 0.25 at 2, 1 at 3; ")
    assert text.endswith("many from 0 at 0 to 8 at 19, most 50 at 10")
    axes.set_xticks([1, 2, 3], ["a", "b", "c"])
    assert "training 0.5 at a, 0.25 at b, 1 at c" in figure_text("Loss", figure)
    figure.set_label("its own words")
    assert figure_text("Loss", figure) == "Loss. its own words"


def test_every_figure_of_a_page_is_said_in_numbers(tmp_path):
    write_workdir(tmp_path)
    labels = re.findall(r'<svg [^>]*aria-label="([^"]*)"', write_report(tmp_path).read_text())
    assert len(labels) > 10
    assert [label for label in labels if not re.search(r"\d", label.partition(". ")[2])] == []


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
@pytest.mark.parametrize("kind", ["run", "list"])
def test_no_page_scrolls_sideways_on_a_phone(kind, listed, tmp_path):
    write_workdir(tmp_path / "run")
    page = write_report(tmp_path / "run").read_text() if kind == "run" else listed[1]
    assert 300 < scroll_width(page, tmp_path) <= 420
