"""The papers' image recipes on CIFAR-10 and CIFAR-100: any network with any loss, each as one config.

Command:   python -m focalgeo.run --config=configs/cifar.py:cifar100,resnet50,flsd53 --workdir=runs/cifar100-flsd53
           The words after the colon name data set (cifar10, cifar100), network and loss in any order; what is not named
           is cifar10, resnet50, ce. `published` and `quick`, `small` or `fitted` may be added.
Networks:  resnet18 resnet18_2w resnet50 resnet110 resnet110_bottleneck wide_resnet26_10 densenet121 mobilenet_v2 vgg19
           vit
Losses:    ce  fl1 fl2 fl3 fl5 fl7  fla53 fla532 flsd53 flsd52  fls532 fls531  brier  mmce  ls  adafocal  dual  trace
Data:      tfds:cifar10 or tfds:cifar100 (prepared once, see docs/reference.md), or --config.data.name=folder:PATH
Recipe:    SGD, momentum 0.9, weight decay 5e-4, batch 128, learning rate 0.1, 0.01 after 150 and 0.001 after 250 of 350
           epochs; random crops (pad 4) and flips; 45,000/5,000/10,000 images; the last epoch
           (Mukhoti et al., App. D; Komisarenko & Kull, 5.1). The weight decay is that of their code.
published: as the published code of Mukhoti et al. departs from the paper: losses are summed over the batch (Brier
           averaged), gradients clipped at norm 2, MMCE weighted (without that code's second division by the squared
           count); its ResNet-110 is resnet110_bottleneck
quick:     a few small layers on 512 images, 3 epochs: whether all of it works, in a minute on 2 CPU cores
fitted:    a cell of the tables in minutes of one core, as experiments/cells.py trains them: resnet18 (then the default)
           with FITTED_NETWORK's sizes on 7,500 images, no augmentation, batch 32, 27 epochs with the recipe's drops at
           the same shares, no curvature; it fits every training image, and so becomes overconfident, as the papers'
small:     the same before the fit: SMALL_NETWORK's sizes, all images, 10 epochs of a cosine schedule; T is then 1.3
Our own:   dual focal loss with gamma 3; trace: cross-entropy with 1e-4 of its Hessian's trace, which no paper states
Time:      fitted: 5 minutes of one CPU core, 1 to 2 of a GPU; small: 9 of one core; others not yet measured
Expected:  small,ce on re-encoded JPEGs, seed 0: test accuracy 80.6%, ECE 5.2%, 1.4% after temperature scaling by ECE.
           Of Mukhoti et al., Tables 3, 1 and 4: test error, ECE (15 bins of equal width, by which temperatures are
           fitted here too) as trained and after temperature scaling, in %:

| data, network        | CE               | Brier           | MMCE             | FL-3            | FLA-53          |
| cifar10 resnet50     |  4.95  4.35 1.35 |  5.00 1.82 1.08 |  4.99  4.56 1.19 |  5.25 1.48 1.42 |  4.98 1.55 0.95 |
| cifar10 resnet110    |  4.89  4.41 1.09 |  5.48 2.56 1.25 |  5.40  5.08 1.42 |  5.08 1.55 1.02 |  5.42 1.87 1.07 |
| cifar10 wide_resnet  |  3.86  3.23 0.92 |  4.08 1.25 1.25 |  3.91  3.29 0.86 |  4.13 1.69 0.97 |  4.01 1.56 0.84 |
| cifar10 densenet121  |  5.00  4.52 1.31 |  5.11 1.53 1.53 |  5.41  5.10 1.61 |  5.33 1.32 1.26 |  5.46 1.22 1.22 |
| cifar100 resnet50    | 23.30 17.52 3.42 | 23.39 6.52 3.64 | 23.20 15.32 2.38 | 22.75 5.13 1.97 | 23.22 4.50 2.00 |
| cifar100 resnet110   | 22.73 19.05 4.43 | 25.10 7.88 4.65 | 23.07 19.14 3.86 | 22.92 8.64 3.95 | 22.51 8.56 4.12 |
| cifar100 wide_resnet | 20.70 15.33 2.88 | 20.59 4.31 2.70 | 20.73 13.17 4.37 | 19.69 2.13 2.13 | 20.11 3.03 1.64 |
| cifar100 densenet121 | 24.52 20.98 4.27 | 23.75 5.17 2.29 | 24.00 19.13 3.06 | 23.25 4.15 1.25 | 22.67 3.73 1.31 |

           of Komisarenko & Kull, Table 1, ResNet-50, means of five seeds: accuracy, ECE after temperature scaling and
           after focal temperature scaling, in %. Their bins are of equal mass: that is row adaptive_ece, and
           --config.evaluation.criteria=nll,ece,adaptive_ece fits by it in place of equal width:

| data     | ce             | fl1            | fl3            | fl7            | flsd53         | adafocal       |
| cifar10  | 95.0 1.03 0.71 | 95.0 1.05 0.82 | 94.3 1.48 0.93 | 93.1 0.66 0.61 | 94.6 1.30 1.23 | 94.9 1.80 0.95 |
| cifar100 | 77.6 3.01 2.13 | 77.7 1.66 1.34 | 77.3 1.28 1.23 | 76.3 1.83 0.99 | 77.5 1.89 1.68 | 77.6 2.96 2.71 |
"""

from ml_collections import ConfigDict

from configs import cifar10
from focalgeo.config import chosen

DATA = ("cifar10", "cifar100")
# network -> what makes it small for `quick`
NETWORKS = {
    "resnet18": {"blocks": (1, 1), "widths": (8, 16)},
    "resnet18_2w": {"blocks": (1, 1), "widths": (16, 32)},
    "resnet50": {"blocks": (1, 1), "widths": (8, 16)},
    "resnet110": {"blocks": (1, 1, 1), "widths": (4, 8, 16)},
    "resnet110_bottleneck": {"blocks": (1, 2), "widths": (8, 16)},
    "wide_resnet26_10": {"blocks": (1, 1), "widths": (32, 64)},
    "densenet121": {"blocks": (1, 2)},
    "mobilenet_v2": {"blocks": (1, 2, 1)},
    "vgg19": {"blocks": (1, 1, 1, 1, 1), "widths": (8, 16, 32, 64, 64)},
    "vit": {"width": 48, "depth": 1},
}
# loss -> fields of config.loss
LOSSES = {
    "ce": {"name": "cross_entropy"},
    **{f"fl{gamma}": {"name": "focal_loss", "gamma": float(gamma)} for gamma in (1, 2, 3, 5, 7)},
    **{name: {"name": f"{name[:-2]}_53"} for name in ("fla53", "flsd53")},
    "fla532": {"name": "fla_532"},
    "flsd52": {"name": "flsd_52"},
    "fls532": {"name": "scheduled_focal_loss", "gammas": (5.0, 3.0, 2.0)},
    "fls531": {"name": "scheduled_focal_loss", "gammas": (5.0, 3.0, 1.0)},
    "brier": {"name": "brier_loss"},
    "mmce": {"name": "mmce", "penalty_weight": 2.0},
    "ls": {"name": "label_smoothed_cross_entropy", "smoothing": 0.05},
    "adafocal": {"name": "adafocal_loss"},
    "dual": {"name": "dual_focal_loss", "gamma": 3.0},
    "trace": {"name": "cross_entropy", "trace_penalty": 1e-4, "trace_form": "jvp_of_jvp"},
}
SWITCHES = {"published": ["published"], "size": ["quick", "small"]}
# of resnet18
SMALL_NETWORK = {"blocks": (1, 1, 1), "widths": (32, 96, 192), "stem_stride": 2}
FITTED_NETWORK = {"blocks": (1, 1, 1), "widths": (32, 64, 128), "stem_stride": 2}


def get_config(words: str = "") -> ConfigDict:
    """The job of the data set, network and loss that the words name, as in "cifar100,resnet50,flsd53"."""
    sizes = {"quick": make_quick, "small": make_small, "fitted": make_fitted}
    switches = SWITCHES | {"size": list(sizes)}
    named = chosen(words, __file__, {"data": DATA, "network": NETWORKS, "loss": LOSSES, **switches})
    config, size = cifar10.get_config(), named.get("size")
    config.data.name = f"tfds:{named.get('data', 'cifar10')}"
    config.model.name = named.get("network", "resnet18" if size in ("small", "fitted") else "resnet50")
    if size:
        sizes[size](config)
    set_loss(config, named.get("loss", "ce"), published="published" in named)
    return config


def set_loss(config: ConfigDict, loss: str, *, published: bool = False) -> None:
    """Name the loss; what depends on the epochs is fitted to config.optimizer.epochs."""
    config.loss.update(LOSSES[loss])
    if config.loss.name == "scheduled_focal_loss":
        config.loss.boundaries = boundaries(config.optimizer.epochs)
    if published:
        config.optimizer.reduction = "mean" if loss == "brier" else "sum"
        config.optimizer.clip_norm = 2.0
        if loss == "mmce":
            config.loss.name = "weighted_mmce"


def boundaries(epochs: int) -> tuple[int, int]:
    """The epochs at which FLS changes gamma: 100 and 250 of 350, 30 and 70 of 100, the same shares of others."""
    return {100: (30, 70)}.get(epochs, (round(epochs * 2 / 7), round(epochs * 5 / 7)))


def make_quick(config: ConfigDict) -> None:
    """The same path at a size for a minute on 2 CPU cores."""
    config.model.options.update(NETWORKS[config.model.name])
    config.data.train_size, config.data.val_size, config.data.test_size = 512, 200, 400
    config.optimizer.batch_size = 64
    config.optimizer.epochs = 3
    config.optimizer.decay_epochs = (2,)
    config.log_every = 8
    config.evaluation.batch_size = 200
    config.evaluation.num_resamples = 100
    config.curvature.examples, config.curvature.batch_size = 50, 50
    config.curvature.max_products = 4
    config.curvature.num_probes = 6
    config.curvature.density_probes = 0


def make_small(config: ConfigDict) -> None:
    """A cell before the fit: a small network and ten epochs of all images, on 2 CPU cores."""
    make_cell(config, SMALL_NETWORK)
    config.optimizer.learning_rate = 0.05
    config.optimizer.nesterov = True
    config.optimizer.weight_decay = 1e-3
    config.optimizer.schedule = "cosine"
    config.optimizer.warmup_epochs = 1
    config.optimizer.epochs = 10
    config.optimizer.decay_epochs = ()


def make_fitted(config: ConfigDict) -> None:
    """A cell of the papers' tables in their regime: every training image is fitted, at a sixth of the images."""
    make_cell(config, FITTED_NETWORK)
    config.data.train_size = 7500
    config.optimizer.epochs = 27
    config.optimizer.decay_epochs = (12, 19)


def make_cell(config: ConfigDict, sizes: dict) -> None:
    """What the cells on images have in common; sizes: of resnet18."""
    if config.model.name == "resnet18":
        config.model.options.update(sizes)
    config.data.augment = "none"
    config.optimizer.batch_size = 32
    config.log_every = 500
    config.checkpoint.every = 2000
    measure_outputs(config)


def measure_outputs(config: ConfigDict) -> None:
    """All that the papers' tables hold of a network's outputs, and no curvature."""
    config.curvature.examples = 0
    config.evaluation.num_resamples = 200
    config.evaluation.methods = (
        *("temperature_scaling", "loss_implied_temperature_scaling", "focal_temperature_scaling"),
        *("vector_scaling", "focal_vector_scaling", "loss_implied_map"),
    )
    config.evaluation.criteria = ("nll", "ece", "adaptive_ece", "line_search")
    config.evaluation.metrics = (
        *("accuracy", "nll", "ece", "adaptive_ece", "classwise_ece", "mce", "brier"),
        *("high_confidence", "high_confidence_accuracy"),
    )
