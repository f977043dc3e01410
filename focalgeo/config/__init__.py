"""The config of a job: the table of its fields, and the functions that read, check and print it. Imports no jax.

A config file's `get_config` starts from `default_config()` and sets what differs. `--config.NAME=VALUE` sets a field on
the command line, and `python -m focalgeo.run --fields` prints them all.
"""

from focalgeo.config.fields import FIELDS, default_config, describe
from focalgeo.config.reading import chosen, load_config, own_configs, split_arguments, split_flags
from focalgeo.config.validation import (
    SWEPT_FIELDS,
    Known,
    axes,
    check,
    combinations,
    member_config,
    member_name,
    with_values,
)

__all__ = [
    "FIELDS",
    "SWEPT_FIELDS",
    "Known",
    "axes",
    "check",
    "chosen",
    "combinations",
    "default_config",
    "describe",
    "load_config",
    "member_config",
    "member_name",
    "own_configs",
    "split_arguments",
    "split_flags",
    "with_values",
]
