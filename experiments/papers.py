"""What the three papers hold, item by item: how far it is answered here, and where.

K: Kimura & Naganuma, arXiv 2405.00442. F: Komisarenko & Kull, arXiv 2408.11598. M: Mukhoti et al., the ICLR 2020
submission "The Intriguing Effects of Focal Loss on the Calibration of Deep Neural Networks", whose tables, figures and
appendices these are; arXiv 2002.09437 is its later version, with other numbers and policies. N: published notes on K.
"""

from collections import Counter
from typing import NamedTuple

from experiments.numbers import markdown

LACKS = {  # what some answers lack -> why, and the command that would make it
    "CIFAR-100": (
        "its files are not at hand",
        "python -m experiments.cells --scale=paper --tasks cifar100",
    ),
    "networks": (
        "ResNet-50, ResNet-110, Wide ResNet and DenseNet on all images need a GPU or TPU; a small ResNet stands in",
        "python -m experiments.cells --tasks cifar10 --scale=paper",
    ),
    "Tiny ImageNet": (
        "100,000 images and ResNet-50 need the full files and a GPU or TPU",
        "python -m experiments.cells --scale=paper --tasks tiny_imagenet",
    ),
    "GloVe": (
        "its vectors are not at hand; random ones stand in",
        "python -m focalgeo.run --config=configs/sst.py:fl3 --config.data.embeddings=glove.txt --workdir=runs/sst-fl3",
    ),
    "recipe": (
        "the paper states no recipe, data set or network sizes; ours are named in the README",
        "python -m experiments curvature_and_gamma --scale=paper",
    ),
    "epochs": ("the paper has epochs of 350, with other places of the drops; ours are 27", ""),
}


class Item(NamedTuple):
    """A figure, table, statement, definition or question of a paper."""

    words: str
    where: str  # a question, a name of the library, or a test as "tests/theory/test_risk.py::test_..."; "" for none
    lacks: str = ""  # names of LACKS
    open: str = ""  # what of it is not answered

    @property
    def answered(self) -> str:
        """As in the paper, at a size for two cores, in part, or not at all."""
        return "missing" if not self.where else "partial" if self.open else "small" if self.lacks else "full"


_TABLES = {  # of M
    1: "ECE of the baselines and FLA-53",
    2: "AdaECE of the same",
    3: "error",
    4: "ECE of focal losses",
    5: "AdaECE of the same",
    7: "ECE of all focal losses",
    8: "AdaECE of the same",
    9: "error of the same",
    10: "NLL before temperature scaling",
    11: "NLL after it",
    12: "MCE before it",
    13: "MCE after it",
}
_FIGURES = {  # of F, without training
    1: "proper part and map",
    2: "1/T by gamma, and the map in log-odds",
    3: "bounds of the temperature",
    4: "isolines of risk",
    5: "the map as arrows",
    6: "1/T by gamma, three classes",
    7: "the map minus a temperature",
}
ITEMS = {
    # Kimura & Naganuma
    "K Def. 1": Item("expected calibration error", "focalgeo.calibration.ece"),
    "K Def. 2": Item("focal loss", "focalgeo.losses.focal_loss"),
    "K Lemma 1": Item("a lower bound of focal loss by an entropy", "focalgeo.theory.focal_lower_bound"),
    "K Thm. 1": Item("the Maxwell-Boltzmann distribution has the most entropy", "focalgeo.theory.maxwell_boltzmann"),
    "K Cor. 1": Item("a PAC-Bayes bound, and against n", "bounds"),
    "K Cor. 2": Item("its KL as a regulariser", "bounds"),
    "K Thm. 2": Item("KL near a point is the Fisher form", "bounds"),
    "K Thm. 2, sentence": Item("the likelihood becomes less sharp", "curvature_and_gamma", "networks, recipe"),
    "K Eq. 28": Item("curvature with the factor of gamma", "theory"),
    "K Conj. 1": Item("gamma controls curvature and calibration", "bounds", "networks, recipe"),
    "K Def. 3": Item("Lipschitz continuity", "bounds"),
    "K Fig. 1": Item("gradients of focal loss", "theory"),
    "K Fig. 2": Item("lambda_max on val by gamma", "curvature_and_gamma", "networks, recipe"),
    "K 4.2": Item("does ECE grow with the trace", "curvature_and_gamma", "CIFAR-100, networks, recipe"),
    "K Fig. 3": Item(
        "trace and ECE",
        "curvature_and_gamma",
        "CIFAR-100, networks, recipe",
        "gammas above 5 in four of five networks; in one ECE rises again from 7 on",
    ),
    "K 4.3": Item("the trace of the Hessian as a penalty", "trace_penalty", "networks, recipe"),
    "K Fig. 4": Item(
        "ECE by the penalty's weight",
        "trace_penalty",
        "networks, recipe",
        "more than three seeds of one overconfident network",
    ),
    "K Eq. 6": Item("entropy at equal cross-entropy on train", "theory", "networks, recipe"),
    "K Eq. 27": Item("the loss near a minimum to second order", "bounds", "networks, recipe"),
    "K, gamma >= 1": Item("whether gamma below 1 is worse", "curvature_and_gamma", "networks, recipe"),
    "K 5, other algorithms": Item("do other calibration losses lower curvature", "curvature_of_losses", "networks"),
    "K 5, architectures": Item(
        "does the best curvature depend on the network",
        "curvature_and_gamma",
        "networks",
        "gammas above 5 in four of five networks, without which they have no best one",
    ),
    "K 5, other optimisers": Item("do curvature-aware optimisers calibrate", "sharpness_aware", "networks"),
    # Komisarenko & Kull
    "F Prop. 1": Item(
        "focal loss is convex in the probability",
        "tests/theory/test_risk.py::test_focal_loss_is_convex_in_the_probability",
    ),
    "F Prop. 2": Item("proper loss and map, two classes", "focalgeo.calibration.binary_focal_calibration"),
    "F Prop. 3": Item("bounds of the map by two temperatures", "theory"),
    "F Prop. 4": Item("proper loss and map, more classes", "focalgeo.theory.proper_focal_loss"),
    "F Prop. 5": Item("the map raises the top probability", "theory"),
    **{f"F Fig. {number}": Item(words, "theory") for number, words in _FIGURES.items()},
    "F 3.2": Item("the line of 1/T, its error, the risk", "theory"),
    "F 3.3": Item("the line of 1/T, three and four classes", "theory"),
    "F 4.1": Item("T on train times what generalisation adds", "regime", "networks"),
    "F 4.2": Item("focal temperature scaling", "focalgeo.calibration.FocalTemperatureScaling"),
    "F Table 1": Item(
        "focal temperature scaling by loss",
        "focal_temperature",
        "CIFAR-100, Tiny ImageNet, networks",
        "networks trained with focal losses on 100 and 200 classes",
    ),
    "F 5.2": Item("what the criterion gains; the line search of 3 m", "focal_temperature", "networks"),
    "F Fig. 8": Item("the best T by gamma_ev", "focal_temperature", "CIFAR-100, networks"),
    "F 6": Item("why the best T is linear in gamma_ev", "theory", "networks"),
    "F published code": Item("rows that overflow", "theory"),
    "F 2": Item("AUC of classes; gamma 10 with imbalanced classes", "large_gamma", "networks"),
    # Mukhoti et al.
    "M 2, ECE": Item("expected calibration error", "focalgeo.calibration.ece"),
    "M 2, MCE": Item("maximum calibration error", "focalgeo.calibration.mce"),
    "M 2, AdaECE": Item("with bins of equal mass", "focalgeo.calibration.adaptive_ece"),
    "M 2, reliability": Item("reliability plots", "focalgeo.calibration.reliability"),
    "M Prop. 1": Item("gradients of focal loss and cross-entropy", "focalgeo.theory.gradient_ratio"),
    "M Prop. 2": Item("the gamma from which a probability is damped", "focalgeo.theory.gamma_star"),
    "M 4": Item("a gamma for any p0; training fails from gamma 7 on", "large_gamma", "networks"),
    "M 5, FLA": Item("gamma by sample, 5-3 and 5-3-2", "focalgeo.losses.sample_dependent_focal_loss"),
    "M 5, FLS": Item("gamma by epoch, 5-3-2 and 5-3-1", "focalgeo.losses.scheduled_focal_loss"),
    "M 5, MMCE": Item("the kernel penalty", "focalgeo.losses.mmce"),
    "M 5, Brier": Item("the Brier score as a loss", "focalgeo.losses.brier_loss"),
    "M 6": Item("T by ECE or NLL, the best policies", "calibration_of_losses", "networks"),
    "M App. B": Item("proofs of both propositions", "theory"),
    "M App. G": Item("two parameters", "two_parameters"),
    "M App. H": Item("a lower bound by an entropy", "focalgeo.theory.focal_lower_bound"),
    "M Fig. 1": Item("NLL, entropy, error and ECE by epoch", "during_training", "networks, epochs"),
    "M Fig. 2": Item("reliability on train by epoch", "during_training", "networks, epochs"),
    "M Fig. 3": Item("focal losses by epoch", "during_training", "networks, epochs"),
    "M Fig. 4": Item("gradient ratio; gradient norms by epoch", "during_training", "networks, epochs"),
    "M Fig. 5": Item("norms of two parameters", "two_parameters"),
    "M Fig. 6": Item("confidence of errors, and decision regions", "two_parameters"),
    "M Fig. 7": Item("prediction of least risk", "theory"),
    "M Fig. 8": Item("single images", "during_training", "networks"),
    "M Table 6": Item("S99", "during_training", "networks"),
    **{
        f"M Table {number}": Item(words, "calibration_of_losses", "CIFAR-100, networks, GloVe")
        for number, words in _TABLES.items()
    },
    # notes on Kimura & Naganuma
    "N next check 1": Item("curvature by gamma across architectures", "curvature_and_gamma", "networks"),
    "N next check 2": Item(
        "gamma apart from learning rate, batch size and optimiser",
        "held_apart",
        "networks",
        "a network of images",
    ),
    "N next check 3": Item("surfaces whose curvature is controlled", "causes"),
    "N first experiment 1": Item("lambda_max with both losses on a CNN", "curvature_and_gamma"),
    "N first experiment 2": Item(
        "fine-tuning with focal loss", "switch", "networks", "a network that is strongly overconfident, on images"
    ),
    "N first experiment 3": Item("the trace penalty on a transformer of text", "text_transformer"),
    "N quick check 1": Item("lambda_max for different losses", "curvature_of_losses", "networks"),
    "N quick check 2": Item("does the PAC-Bayes inequality hold", "bounds", "networks"),
    "N quick check 5": Item("does focal loss increase entropy", "during_training", "networks"),
    "N, convergence": Item("whether a higher gamma slows convergence", "during_training", "networks"),
    "N, cause": Item("is lower curvature the cause of calibration", "causes", "networks"),
    "N, failures 1": Item("lower curvature with a higher ECE", "curvature_and_gamma", "networks"),
    "N, failures 2": Item("training that is unstable at large gammas", "large_gamma", "networks"),
}


def coverage() -> str:
    """Every item with how far it is answered and where, and what is missing with the command that would make it."""
    rows = [
        [name, item.words, item.answered, f"`{item.where}`" if item.where else "", item.lacks, item.open]
        for name, item in ITEMS.items()
    ]
    reasons = [[name, why, f"`{command}`" if command else ""] for name, (why, command) in LACKS.items()]
    counts = Counter(item.answered for item in ITEMS.values())
    return (
        f"{(__doc__ or '').partition(chr(10))[2].strip()}\n\n"
        f"full: as in the paper, {counts['full']}; small: at a size for two cores, {counts['small']}; partial, "
        f"{counts['partial']}; missing, {counts['missing']}\n\n"
        + markdown(["item", "what", "answered", "where", "lacks", "not answered"], rows)
        + "\n"
        + markdown(["lacks", "why", "command"], reasons)
    )
