"""The binary Tree-LSTM on the Stanford Sentiment Treebank, two classes, with any of the papers' losses.

Command:   python -m focalgeo.run --config=configs/sst.py:fl3 --workdir=runs/sst-fl3 --config.data.name=sst:PATH
           Losses as in configs/cifar.py, by default ce; `quick` or `small` may be added, as in "quick,fl3", and
           `published` (see configs/cifar.py; no code was published for this task).
           --config.data.embeddings=glove.840B.300d.txt starts from GloVe's vectors, as the paper does
Data:      a folder or archive with trees/train.txt, dev.txt and test.txt; 6,920/872/1,821 trees; of train every phrase
           that is not neutral counts, of val and test the roots alone
Recipe:    AdaGrad, learning rate 0.05, weight decay 1e-4, batch 25, 25 epochs, the one with the best accuracy on val
           (Mukhoti et al., App. D; the batch is Tai et al.'s); word vectors of 300, states of 150 numbers;
           word vectors are left out of the weight decay, which would wipe out the rare ones.
           MMCE has weight 8 here.
Quick:     4 epochs, little curvature
Small:     6 epochs, no curvature: a cell of the tables, as experiments/cells.py trains them
Time:      not yet measured on a GPU; quick: 5 minutes on 2 CPU cores
Expected:  Mukhoti et al., Tables 3, 1 and 4 (with GloVe): test error, ECE as trained and after temperature scaling, in
           %: CE 12.85 7.37 2.62; Brier 12.85 9.01 2.79; MMCE 11.86 5.03 4.02; FL-3 12.19 16.05 1.78;
           FLA-53 12.80 9.19 1.83
           quick, random word vectors, accuracy, ECE as trained and after temperature scaling, in %:
           ce 84.8 8.2 1.5 (T = 1.98), fl3 82.1 13.5 2.9 (T = 0.49)
"""

from ml_collections import ConfigDict

from configs.cifar import LOSSES, SWITCHES
from configs.newsgroups import set_text_loss, text_config
from focalgeo.config import chosen


def get_config(words: str = "") -> ConfigDict:
    """The job with the loss that the words name; `published`, `quick` and `small` as in configs/cifar.py."""
    named = chosen(words, __file__, {"loss": LOSSES, **SWITCHES})
    config = text_config(named.get("size"))
    config.data.name = "sst:sst-trees.tar.xz"
    config.model.name = "tree_lstm"
    config.model.options.embedding_size = 300  # that of the file of word vectors, where there is one
    config.optimizer.name = "adagrad"
    config.optimizer.learning_rate = 0.05
    config.optimizer.weight_decay = 1e-4
    config.optimizer.batch_size = 25
    config.optimizer.epochs = {"quick": 4, "small": 6}.get(named.get("size"), 25)
    config.evaluation.batch_size = 200
    set_text_loss(config, named)
    return config
