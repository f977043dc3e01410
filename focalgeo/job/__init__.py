"""The main job, composed: the only room that reads config fields."""

from focalgeo.job.checks import check_config
from focalgeo.job.main import run, run_and_print

__all__ = ["check_config", "run", "run_and_print"]
