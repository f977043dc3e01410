"""Appendix G of Mukhoti et al.: logistic regression of two parameters, cross-entropy against focal loss with gamma 1.

Command:   python -m focalgeo.run --config=configs/linear.py --workdir=runs/linear
           python -m focalgeo.run --config=configs/linear.py:limit --workdir=runs/linear-limit
What:      points about (+-1, +-1), class by the sign of the first coordinate, a tenth of the labels flipped; the
           probability is sigma(w1 x1 + w2 x2). Both losses are one sweep over gamma (0 is cross-entropy); the page
           shows the norm of w and the probability of misclassified points' true class over training.
Recipe:    gradient descent on all 1,000 points, learning rate 0.3, 1,000 steps. The paper takes 50,000 iterations at a
           rate it does not state; these steps end at the optimum. The clusters' deviation, 0.5, is our choice too.
limit:     clusters without spread, where the optimum is known: |w| = ln 9 = 2.1972 for cross-entropy, 1.2335 for FL-1
quick:     100 steps
Time:      a minute on 2 CPU cores
Expected:  |w| 1.934 for cross-entropy, 1.064 for FL-1; misclassified training points' own class has a mean probability
           of 0.195 and 0.296: FL-1 is less confident in its errors
"""

from ml_collections import ConfigDict

from focalgeo.config import chosen, default_config


def get_config(words: str = "") -> ConfigDict:
    """The sweep; "limit" for clusters without spread, "quick" for 100 steps."""
    variant = chosen(words, __file__, {"variant": ["limit", "quick"]}).get("variant")
    config = default_config()
    config.data.name = "clusters:0" if variant == "limit" else "clusters:0.5"
    config.model.name = "logistic"
    config.loss.gamma = 1.0
    config.optimizer.learning_rate = 0.3
    config.optimizer.momentum = 0.0
    config.optimizer.weight_decay = 0.0
    config.optimizer.batch_size = 1000
    config.optimizer.epochs = 100 if variant == "quick" else 1000
    config.optimizer.decay_epochs = ()
    config.log_every = 50
    config.checkpoint.every = 1000
    config.curvature.examples, config.curvature.batch_size = 1000, 1000
    config.curvature.trace_method = "hutchinson"
    config.curvature.density_probes = 0
    config.diagnostics.every = 20
    config.sweep.gamma = (0.0, 1.0)
    return config
