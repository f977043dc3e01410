"""The papers' recipe on Tiny ImageNet, 200 classes of 64x64 images: any network of configs/cifar.py with any loss.

Command:   python -m focalgeo.run --config=configs/tiny_imagenet.py:resnet50,fl3 --workdir=runs/tiny-fl3
               --config.data.name=tiny_imagenet:PATH
           Words after the colon as in configs/cifar.py, without a data set; by default resnet50,ce.
Data:      the folder or archive in its own layout (tiny-imagenet-200, downloaded by hand); its train split is divided
           90,000/10,000 into train and val, its val split is test
Recipe:    SGD, momentum 0.9, weight decay 5e-4, batch 64, learning rate 0.1 for 40, 0.01 for 20, 0.001 for 40 epochs
           (Komisarenko & Kull, 5.1). The first layer has stride 2, our choice: an image then costs what CIFAR's costs.
           Pixels are normalised by CIFAR-10's mean and deviation.
           Networks without a stem to stride (vgg19, vit) read 64x64.
Time:      not yet measured on a GPU
Expected:  Komisarenko & Kull, Table 1, ResNet-50, five seeds: accuracy, and ECE (equal mass, 15 bins) after temperature
           scaling and after focal temperature scaling, in % (row adaptive_ece; fitted by equal width here, unless
           --config.evaluation.criteria=nll,ece,adaptive_ece):
           | ce             | fl1            | fl3            | fl7            | flsd53         | adafocal       |
           | 49.9 5.57 3.66 | 50.6 3.27 1.86 | 51.6 2.21 1.63 | 50.9 1.01 0.96 | 52.1 2.06 1.48 | 51.6 2.97 1.89 |
           Their published code fits the maps on the split it tests on.
"""

from ml_collections import ConfigDict

from configs import cifar10
from configs.cifar import LOSSES, NETWORKS, SWITCHES, make_quick, set_loss
from focalgeo.config import chosen

WITHOUT_STEM = ("vgg19", "vit")


def get_config(words: str = "") -> ConfigDict:
    """The job of the network and loss that the words name, as in "resnet50,fl3"."""
    named = chosen(words, __file__, {"network": NETWORKS, "loss": LOSSES, **SWITCHES, "size": ["quick"]})
    config = cifar10.get_config()
    config.data.name = "tiny_imagenet:tiny-imagenet-200"
    config.model.name = named.get("network", "resnet50")
    if config.model.name not in WITHOUT_STEM:
        config.model.options.stem_stride = 2
    config.optimizer.batch_size = 64
    config.optimizer.epochs = 100
    config.optimizer.decay_epochs = (40, 60)
    if named.get("size") == "quick":
        make_quick(config)
    set_loss(config, named.get("loss", "ce"), published="published" in named)
    return config
