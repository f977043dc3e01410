"""Focal loss at seven gammas and five seeds on scikit-learn's digits, all 35 runs in one compiled program.

Command:   python -m focalgeo.run --config=configs/digits_gamma.py --workdir=runs/digits-gamma
Time:      TIME
Expected:  EXPECTED
Source:    Kimura & Naganuma, arXiv 2405.00442, section 4: curvature and calibration against gamma; data, network and
           learning rate are our choice
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict


def get_config(arg: str = "") -> ConfigDict:
    """The job of configs/digits.py for each gamma and seed; `arg` "quick": two epochs, two gammas, two seeds."""
    config = runpy.run_path(str(Path(__file__).with_name("digits.py")))["get_config"](arg)
    config.curvature.splits = ("val", "train")
    config.sweep.gamma = (0.0, 3.0) if arg == "quick" else (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0)
    config.sweep.seed = (0, 1) if arg == "quick" else (0, 1, 2, 3, 4)
    return config
