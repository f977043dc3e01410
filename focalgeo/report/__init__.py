"""Rows in, figures and one HTML page out; the only package that draws. `python -m focalgeo.report WORKDIR` rebuilds it.

The methods and metrics of a page are those of the manifest: a new one needs nothing here.
"""

from focalgeo.report import figures, row_figures, style, sweep
from focalgeo.report.calibration import results_text
from focalgeo.report.figures import against_gamma, calibration_curve, confidence_histogram, reliability, risk_coverage
from focalgeo.report.page import write_report
from focalgeo.report.runs import merge_workdirs, write_list
from focalgeo.report.selection import Column, Run
from focalgeo.report.style import to_svg
from focalgeo.report.sweep import sweep_text
