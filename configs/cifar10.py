"""ResNet-18 on CIFAR-10 with focal loss, by the papers' recipe; and a quick variant for a laptop.

Command:   python -m focalgeo.run --config=configs/cifar10.py --workdir=runs/cifar10
           python -m focalgeo.run --config=configs/cifar10.py:quick --workdir=runs/cifar10-quick
Data:      tfds:cifar10 (prepared once, see the README), or class folders of images, in an archive too:
           --config.data.name=folder:cifar10.tar.xz
Recipe:    SGD, momentum 0.9, weight decay 5e-4, batch 128, learning rate 0.1, divided by 10 after 150 and 250 of 350
           epochs; random crops (pad 4) and flips; 45,000/5,000/10,000 images
           (Mukhoti et al., App. D; Komisarenko & Kull, 5.1)
Quick:     a 3-layer convolutional network (98,000 parameters) on 20,000 of the 45,000 training images,
           with 2,000 of val and all 10,000 test images, 12 epochs
Time:      not yet measured on a GPU; quick: 3 minutes on 2 CPU cores
Expected:  quick, on re-encoded JPEGs: test accuracy 0.59; ECE 0.12 as trained, 0.02 after either map
"""

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder


def get_config(arg: str = "") -> ConfigDict:
    """The whole job; `arg` "quick" is the same path at a size for 2 CPU cores."""
    if arg not in ("", "quick"):
        raise ValueError(
            f"configs/cifar10.py has no variant {arg!r}; use configs/cifar10.py or configs/cifar10.py:quick"
        )
    config = ConfigDict()
    config.seed = 0

    config.data = ConfigDict()
    config.data.name = "tfds:cifar10"
    config.data.split_seed = 1
    config.data.train_size = placeholder(int)
    config.data.val_size = placeholder(int)
    config.data.test_size = placeholder(int)
    config.data.image_size = placeholder(int)
    config.data.max_words = placeholder(int)
    config.data.max_length = placeholder(int)
    config.data.embeddings = placeholder(str)
    config.data.augment = "crop_flip"
    config.data.scale = 255.0
    config.data.mean = (0.4914, 0.4822, 0.4465)
    config.data.std = (0.2023, 0.1994, 0.2010)

    config.model = ConfigDict()
    config.model.name = "resnet18"
    config.model.dtype = "float32"
    config.model.hidden = placeholder(tuple)
    config.model.widths = (64, 128, 256, 512)
    config.model.blocks = (2, 2, 2, 2)
    config.model.width = placeholder(int)
    config.model.depth = placeholder(int)
    config.model.stem_stride = placeholder(int)
    config.model.embedding_size = placeholder(int)
    config.model.dropout = placeholder(float)

    config.loss = ConfigDict()
    config.loss.name = "focal_loss"
    config.loss.gamma = 3.0
    config.loss.smoothing = 0.05
    config.loss.thresholds = (0.2,)
    config.loss.boundaries = (100, 250)
    config.loss.gammas = (5.0, 3.0)
    config.loss.penalty_weight = 2.0
    config.loss.alpha = ()
    config.loss.trace_penalty = 0.0

    config.optimizer = ConfigDict()
    config.optimizer.name = "sgd"
    config.optimizer.learning_rate = 0.1
    config.optimizer.momentum = 0.9
    config.optimizer.nesterov = False
    config.optimizer.weight_decay = 5e-4
    config.optimizer.reduction = "mean"
    config.optimizer.clip_norm = 0.0
    config.optimizer.batch_size = 128
    config.optimizer.epochs = 350
    config.optimizer.schedule = "steps"
    config.optimizer.decay_epochs = (150, 250)
    config.optimizer.decay_factor = 0.1
    config.optimizer.warmup_epochs = 0
    config.optimizer.select = "last"

    config.log_every = 50
    config.checkpoint = ConfigDict({"every": 1000, "keep": 3})

    config.evaluation = ConfigDict()
    config.evaluation.batch_size = 512
    config.evaluation.num_bins = 15
    config.evaluation.binning = "ece"
    config.evaluation.gammas = (-0.5, -0.25, 0.0, 0.05, 0.25, 0.37, 0.5, 0.75, 1.0, 5.0)
    config.evaluation.temperature_step = 0.01
    config.evaluation.max_temperature = 5.0
    config.evaluation.num_resamples = 1000

    config.curvature = ConfigDict()
    config.curvature.splits = ("val",)
    config.curvature.examples = 1000
    config.curvature.batch_size = 250
    config.curvature.max_products = 40
    config.curvature.tolerance = 1e-3
    config.curvature.num_probes = 60
    config.curvature.trace_method = "hutch++"
    config.curvature.density_probes = 10
    config.curvature.density_steps = 40
    config.curvature.every = 0

    config.diagnostics = ConfigDict({"every": 0, "splits": ("train", "val"), "examples": 0, "num_bins": 25})

    config.sweep = ConfigDict({"gamma": (), "trace_penalty": (), "learning_rate": (), "seed": (), "at_once": 0})

    if arg == "quick":
        config.data.train_size = 20_000
        config.data.val_size = 2_000
        config.model.name = "cnn"
        config.model.widths = (32, 64, 128)
        config.model.blocks = None
        config.optimizer.learning_rate = 0.05
        config.optimizer.epochs = 12
        config.optimizer.decay_epochs = (8, 11)
        config.log_every = 50
        config.checkpoint.every = 200
        config.curvature.examples = 500
        config.curvature.max_products = 20
        config.curvature.num_probes = 30
        config.curvature.density_probes = 4
        config.curvature.density_steps = 20
    return config
