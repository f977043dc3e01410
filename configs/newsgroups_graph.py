"""A graph convolutional network on posts of 20 Newsgroups, each joined to the 10 nearest: gammas as digits_graph's.

Command:   python -m focalgeo.run --config=configs/newsgroups_graph.py --workdir=runs/newsgroups-graph
           add --config.data.name=graph:newsgroups:PATH for a folder or archive; else scikit-learn downloads it
Graph:     TF-IDF of the 2,000 most frequent words of 5,900 posts without their headers; 4,000, 900 and 1,000 labels
Recipe:    that of configs/digits_graph.py
Time:      TIME on 2 CPU cores
Expected:  EXPECTED
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
