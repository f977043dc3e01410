"""ResNet-18 on CIFAR-10 with focal loss, by the papers' recipe; and a quick variant for a laptop.

Command:   python -m focalgeo.run --config=configs/cifar10.py --workdir=runs/cifar10
           python -m focalgeo.run --config=configs/cifar10.py:quick --workdir=runs/cifar10-quick
Data:      tfds:cifar10 (prepared once, see docs/reference.md), or class folders of images, in an archive too:
           --config.data.name=folder:cifar10.tar.xz
Recipe:    SGD, momentum 0.9, weight decay 5e-4, batch 128, learning rate 0.1, divided by 10 after 150 and 250 of 350
           epochs; random crops (pad 4) and flips; 45,000/5,000/10,000 images
           (Mukhoti et al., App. D; Komisarenko & Kull, 5.1)
Quick:     a 3-layer convolutional network (98,000 parameters) on 20,000 of the 45,000 training images,
           with 2,000 of val and all 10,000 test images, 12 epochs
Time:      quick: 3 minutes on 2 CPU cores, seconds on a GPU (experiments/regime); the rest not yet measured
Expected:  quick, on re-encoded JPEGs: test accuracy 0.59; ECE 0.12 as trained, 0.02 after either map
"""

from ml_collections import ConfigDict

from focalgeo.config import chosen, default_config


def get_config(words: str = "") -> ConfigDict:
    """The job; "quick" is the same path at a size for 2 CPU cores."""
    config = default_config()
    config.data.name = "tfds:cifar10"
    config.data.augment = "crop_flip"
    config.data.scale = 255.0
    config.data.mean = (0.4914, 0.4822, 0.4465)
    config.data.std = (0.2023, 0.1994, 0.2010)
    config.model.name = "resnet18"
    config.optimizer.batch_size = 128
    config.optimizer.epochs = 350
    config.optimizer.decay_epochs = (150, 250)
    config.log_every = 50
    config.checkpoint.every = 1000
    config.curvature.examples, config.curvature.batch_size = 1000, 250
    if "quick" in chosen(words, __file__, {"quick": ["quick"]}):
        config.data.train_size = 20_000
        config.data.val_size = 2_000
        config.model.name = "cnn"
        config.optimizer.learning_rate = 0.05
        config.optimizer.epochs = 12
        config.optimizer.decay_epochs = (8, 11)
        config.checkpoint.every = 200
        config.curvature.examples = 500
        config.curvature.max_products = 20
        config.curvature.num_probes = 30
        config.curvature.density_probes = 4
        config.curvature.density_steps = 20
    return config
