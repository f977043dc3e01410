"""Cross-entropy with six weights of a trace penalty and five seeds on scikit-learn's digits, in one compiled program.

Command:   python -m focalgeo.run --config=configs/digits_trace_sweep.py --workdir=runs/digits-trace-sweep
Time:      2 minutes on 2 CPU cores
Expected:  means of five seeds at penalty 0, 0.001, 0.004: trace of the Hessian on train 2.76, 1.24, 0.42, on val 24.5,
           21.0, 12.0; test accuracy 96.8, 97.2, 97.8%; ECE as trained 2.2, 1.7, 1.9%
Source:    Kimura & Naganuma, arXiv 2405.00442, Eq. 33; data, network, learning rate and penalties are our choice
"""

from ml_collections import ConfigDict

from configs import digits_trace


def get_config(words: str = "") -> ConfigDict:
    """The job of configs/digits_trace.py for each penalty and seed; "quick": two epochs, two of each."""
    config = digits_trace.get_config(words)
    config.loss.trace_penalty = 0.0
    config.curvature.density_probes = 0
    config.sweep.trace_penalty = (0.0, 0.001) if "quick" in words else (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.004)
    config.sweep.seed = (0, 1) if "quick" in words else (0, 1, 2, 3, 4)
    return config
