"""A graph convolutional network on posts of 20 Newsgroups, each joined to the 10 nearest: gammas as digits_graph's.

Command:   python -m focalgeo.run --config=configs/newsgroups_graph.py --workdir=runs/newsgroups-graph
           add --config.data.name=graph:newsgroups:PATH for a folder or archive; else scikit-learn downloads it
Graph:     TF-IDF of the 2,000 most frequent words of 5,900 posts without their headers; 4,000, 900 and 1,000 labels
Recipe:    that of configs/digits_graph.py
Time:      20 minutes on 2 CPU cores, of which 12 are the measurement of curvature
Expected:  means of five seeds at gamma 0, 3, 7: test accuracy 66.5, 64.7, 63.5%; ECE as trained 5.0, 12.0, 19.5% (it is
           underconfident from the start), 5.7, 4.5, 5.1% after T; trace of cross-entropy's Hessian on val 8.4, 9.2, 9.2
           and of focal loss's own 8.4, 9.0, 7.6
"""

from ml_collections import ConfigDict

from configs import digits_graph


def get_config(words: str = "") -> ConfigDict:
    """The sweep of configs/digits_graph.py on posts; "quick": two epochs, two gammas, two seeds, 400 posts."""
    config = digits_graph.get_config(words)
    config.data.name = "graph:newsgroups"
    config.data.max_words = 2000
    config.data.train_size, config.data.val_size, config.data.test_size = 4000, 900, 1000
    if "quick" in words:
        config.data.train_size, config.data.val_size, config.data.test_size = 200, 100, 100
    return config
