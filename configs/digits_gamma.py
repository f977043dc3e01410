"""Focal loss at seven gammas and five seeds on scikit-learn's digits, all 35 runs in one compiled program.

Command:   python -m focalgeo.run --config=configs/digits_gamma.py --workdir=runs/gammas
Time:      2 minutes on 2 CPU cores
Expected:  means of five seeds at gamma 0, 3, 7: test accuracy 96.8, 96.4, 96.2%; ECE as trained 2.2, 6.9, 21.1%
           (focal loss makes this network underconfident), 2.1, 2.1, 2.7% after T; trace of cross-entropy's Hessian on
           val 24.5, 39.2, 59.0 and of focal loss's own 24.5, 17.6, 12.2
Source:    Kimura & Naganuma, arXiv 2405.00442, section 4: curvature and calibration against gamma; data, network and
           learning rate are our choice
"""

from ml_collections import ConfigDict

from configs import digits


def get_config(words: str = "") -> ConfigDict:
    """The job of configs/digits.py for each gamma and seed; "quick": two epochs, two gammas, two seeds."""
    config = digits.get_config(words)
    config.curvature.splits = ("val", "train")
    config.curvature.density_probes = 0
    config.sweep.gamma = (0.0, 3.0) if "quick" in words else (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0)
    config.sweep.seed = (0, 1) if "quick" in words else (0, 1, 2, 3, 4)
    return config
