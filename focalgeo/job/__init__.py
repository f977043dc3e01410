"""The main job, composed: the only room that reads config fields."""

from focalgeo.job.main import run, run_and_print
from focalgeo.job.preparation import check_config, describe_config

__all__ = ["check_config", "describe_config", "run", "run_and_print"]
