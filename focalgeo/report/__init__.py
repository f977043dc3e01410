"""Rows in, figures and one HTML page out; the only room that draws. `python -m focalgeo.report WORKDIR` rebuilds it."""

from focalgeo.report.curves import curve_figure
from focalgeo.report.figures import estimate_figure, reliability_figure
from focalgeo.report.page import write_report
from focalgeo.report.selection import Column
from focalgeo.report.style import to_svg
from focalgeo.report.surface import surface_figure
from focalgeo.report.sweep_page import sweep_text

__all__ = [
    "Column",
    "curve_figure",
    "estimate_figure",
    "reliability_figure",
    "surface_figure",
    "sweep_text",
    "to_svg",
    "write_report",
]
