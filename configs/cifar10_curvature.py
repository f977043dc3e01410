"""Five networks on 5,000 images of CIFAR-10, focal loss at five gammas: curvature and calibration, on 2 CPU cores.

Command:   python -m focalgeo.run --config=configs/cifar10_curvature.py:vit --workdir=runs/curvature-vit
           add --config.data.name=folder:PATH for a folder of images (train/ and test/, one folder per class)
Networks:  resnet18 (the default), resnet18_2w (twice as wide), mobilenet_v2, vit, vgg19, all at reduced size
Recipe:    5,000 training images without augmentation, batch 50, cosine schedule from 0.05 (vit: Adam, 0.001), weight
           decay 5e-4, 30 epochs (vit 40), so that networks fit their training images: resnet18 at gamma 5 has 99.8% of
           them right in the last epoch. Curvature on 500 images of val and of train
paper:     the networks at their own size on all images, 350 epochs with crops and flips, as configs/cifar.py
Time:      experiments/curvature_and_gamma
Source:    Kimura & Naganuma, arXiv 2405.00442, section 4, who state neither recipe nor sizes; these are our choice
"""

from ml_collections import ConfigDict

from configs import cifar10
from focalgeo.config import chosen

GAMMAS = (0.0, 1.0, 2.0, 3.0, 5.0)
NETWORKS = {
    "resnet18": {"blocks": (1, 1, 1), "widths": (16, 32, 64), "stem_stride": 2},
    "resnet18_2w": {"blocks": (1, 1, 1), "widths": (32, 64, 128), "stem_stride": 2},
    "mobilenet_v2": {"blocks": (1, 1, 1, 1), "stem_stride": 4},
    "vit": {"width": 96, "depth": 3, "heads": 3, "patch": 8},
    "vgg19": {"blocks": (1, 1, 1, 1, 1), "widths": (8, 16, 32, 64, 128)},
}
EPOCHS = {"resnet18": 30, "resnet18_2w": 30, "mobilenet_v2": 30, "vit": 40, "vgg19": 30}


def get_config(words: str = "") -> ConfigDict:
    """The sweep over gamma of the network that the words name."""
    named = chosen(words, __file__, {"network": NETWORKS, "paper": ["paper"]})
    config = cifar10.get_config()
    config.model.name = named.get("network", "resnet18")
    config.evaluation.methods = ("temperature_scaling",)
    config.curvature.splits = ("val", "train")
    config.curvature.density_probes = 0
    config.sweep.gamma = GAMMAS
    if "paper" not in named:
        make_small(config)
    return config


def make_small(config: ConfigDict) -> None:
    """Reduced networks on 5,000 images, one after another: a run takes minutes of a core."""
    network = config.model.name
    config.data.augment = "none"
    config.data.train_size, config.data.val_size = 5_000, 2_500
    config.model.options.update(NETWORKS[network])
    config.optimizer.batch_size = 50
    config.optimizer.learning_rate = 0.05
    config.optimizer.nesterov = True
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_epochs = 1
    config.optimizer.epochs = EPOCHS[network]
    config.optimizer.decay_epochs = ()
    if network == "vit":
        config.optimizer.name = "adam"
        config.optimizer.learning_rate = 0.001
    config.evaluation.num_resamples = 200
    config.curvature.examples, config.curvature.batch_size = 500, 250
    config.curvature.max_products = 20
    config.curvature.num_probes = 12
    config.sweep.at_once = 1
