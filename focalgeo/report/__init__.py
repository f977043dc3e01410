"""Rows in, figures and one HTML page out; the only package that draws. `python -m focalgeo.report WORKDIR` rebuilds it.

The methods and metrics of a page are those of the manifest: a new one needs nothing here.
"""

from focalgeo.report.curves import curve_figure
from focalgeo.report.figures import estimate_figure, reliability_figure, surface_figure
from focalgeo.report.merge import merge_workdirs
from focalgeo.report.page import write_report
from focalgeo.report.runs import write_list
from focalgeo.report.selection import Column
from focalgeo.report.style import to_svg
from focalgeo.report.sweep_page import sweep_text
from focalgeo.report.tables import results_text

__all__ = [
    "Column",
    "curve_figure",
    "estimate_figure",
    "merge_workdirs",
    "reliability_figure",
    "results_text",
    "surface_figure",
    "sweep_text",
    "to_svg",
    "write_list",
    "write_report",
]
