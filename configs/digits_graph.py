"""A graph convolutional network on digits, each joined to the 10 nearest: focal loss at seven gammas and five seeds.

Command:   python -m focalgeo.run --config=configs/digits_graph.py --workdir=runs/digits-graph
Graph:     all 1,797 digits are nodes; a step is of the whole graph, and its loss of the 1,079 labels of train
           (focalgeo.data.graphs). Val and test are the same graph with the labels of 359 other nodes each.
Recipe:    Adam, learning rate 0.01, 200 steps, 16 hidden units with dropout of 0.5 (Kipf & Welling, arXiv 1609.02907,
           5.2); no weight decay, which there is on the first layer alone, and no stop by val
Time:      a minute and a half on 2 CPU cores
Expected:  means of five seeds at gamma 0, 3, 7: test accuracy 99.3, 99.2, 98.8%; ECE as trained 1.8, 12.8, 27.7% (focal
           loss makes it underconfident), 1.5, 1.6, 2.2% after T; trace of cross-entropy's Hessian on val 3.5, 11.6,
           17.0 and of focal loss's own 3.5, 2.7, 1.9
Source:    Kimura & Naganuma, arXiv 2405.00442, section 4: curvature and calibration against gamma; the kind of network
           and the data are our choice
"""

from ml_collections import ConfigDict

from configs import digits_gamma


def get_config(words: str = "") -> ConfigDict:
    """The sweep of configs/digits_gamma.py on the graph; "quick": two epochs, two gammas, two seeds."""
    config = digits_gamma.get_config(words)
    config.data.name = "graph:digits"
    config.model.name = "gcn"
    config.optimizer.name = "adam"
    config.optimizer.learning_rate = 0.01
    config.optimizer.weight_decay = 0.0
    config.optimizer.epochs = 2 if "quick" in words else 200
    config.optimizer.decay_epochs = ()
    # of graphs, of which each split has one
    config.optimizer.batch_size = config.evaluation.batch_size = 1
    config.curvature.examples = config.curvature.batch_size = 1
    return config
