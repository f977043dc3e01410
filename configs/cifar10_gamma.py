"""Focal loss at eight gammas and five seeds on CIFAR-10 with a small ResNet, in one program.

Command:   python -m focalgeo.run --config=configs/cifar10_gamma.py --workdir=runs/cifar10-gamma
           add --config.data.name=folder:PATH for a folder of images (train/ and test/, one folder per class)
Time:      not measured on a GPU yet; :quick (three gammas, two seeds, a small CNN, 20,000 images) 8 minutes on 2 CPU
           cores, where convolutions of several runs at once are slower than one by one
Expected:  quick, on re-encoded JPEGs, means of two seeds at gamma 0, 1, 3: test accuracy 53.9, 54.1, 53.6%; ECE as
           trained 1.5, 4.8, 10.8%, after T 1.4, 1.7, 2.8%; trace of cross-entropy's Hessian on val 366, 310, 289, of
           focal loss's own 366, 351, 356
Source:    Kimura & Naganuma, arXiv 2405.00442, section 4; network and recipe are our choice, made for speed
"""

from ml_collections import ConfigDict

from configs import cifar10


def get_config(words: str = "") -> ConfigDict:
    """The job of configs/cifar10.py with a faster recipe for each gamma and seed; "quick" as there."""
    config = cifar10.get_config(words)
    if "quick" in words:
        config.optimizer.epochs = 6
        config.optimizer.decay_epochs = (4, 5)
        config.curvature.examples = 250
        config.curvature.max_products = 12
        config.curvature.num_probes = 12
        config.curvature.density_probes = 0
        config.sweep.gamma = (0.0, 1.0, 3.0)
        config.sweep.seed = (0, 1)
        return config
    config.curvature.density_probes = 0
    config.model.options.blocks = (1, 1, 1, 1)
    config.model.options.widths = (32, 64, 128, 256)
    config.model.dtype = "bfloat16"
    config.optimizer.batch_size = 512
    config.optimizer.learning_rate = 0.2
    config.optimizer.nesterov = True
    config.optimizer.epochs = 20
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_epochs = 2
    config.sweep.gamma = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0)
    config.sweep.seed = (0, 1, 2, 3, 4)
    return config
