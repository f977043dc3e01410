"""Cross-entropy with a penalty on the trace of its Hessian, on scikit-learn's digits.

Command:   python -m focalgeo.run --config=configs/digits_trace.py --workdir=runs/digits-trace
           and with --config.loss.trace_penalty=0 --workdir=runs/digits-plain, to compare
Time:      half a minute on 2 CPU cores
Expected:  trace of the Hessian on train 0.98 +- 0.01 (2.63 +- 0.03 without penalty), on val 18.3 +- 0.5 (22.3 +- 0.6);
           test accuracy 0.975 (0.969), ECE 0.016 (0.022): one seed, 359 test images
Source:    Kimura & Naganuma, arXiv 2405.00442, Eq. 33; data, network, learning rate and penalty are our choice
"""

from ml_collections import ConfigDict

from configs import digits


def get_config(words: str = "") -> ConfigDict:
    """The job of configs/digits.py with another loss; "quick" as there."""
    config = digits.get_config(words)
    config.loss.name = "cross_entropy"
    config.loss.trace_penalty = 0.001
    config.curvature.splits = ("val", "train")
    return config
