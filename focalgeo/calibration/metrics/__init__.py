"""Metrics of log-probabilities and labels, their table METRICS, and their errors by resampling."""

from focalgeo.calibration.metrics.table import METRICS, MetricEntry, all_metrics, metric_entries
