"""Cross-entropy with five weights of a trace penalty and five seeds on CIFAR-10 with a small ResNet, in one program.

Command:   python -m focalgeo.run --config=configs/cifar10_trace.py --workdir=runs/cifar10-trace
           add --config.data.name=folder:PATH for a folder of images (train/ and test/, one folder per class)
Time:      not measured on a GPU yet; :quick (two penalties, two seeds, a small CNN, 20,000 images, 4 epochs) about
           8 minutes on 2 CPU cores
Expected:  quick, seed 0, on re-encoded JPEGs, penalty 0 and 0.0003: trace of the Hessian on train 517 and 347, test
           accuracy 48 and 36%; other seeds end with 399 to 612 and 27 to 30% under the penalty. With
           --config.loss.trace_of=gauss_newton 319 and 47%, and all seeds alike (experiments/trace_penalty)
Source:    Kimura & Naganuma, arXiv 2405.00442, Eq. 33; network, recipe and penalties are our choice
"""

from ml_collections import ConfigDict

from configs import cifar10_gamma


def get_config(words: str = "") -> ConfigDict:
    """The job of configs/cifar10_gamma.py with cross-entropy for each penalty and seed; "quick" as there."""
    config = cifar10_gamma.get_config(words)
    config.loss.name = "cross_entropy"
    config.curvature.splits = ("val", "train")
    config.sweep.gamma = ()
    config.sweep.trace_penalty = (0.0, 0.00001, 0.00003, 0.0001, 0.0003)
    if "quick" in words:
        config.optimizer.learning_rate = 0.02  # at 0.05 this penalty makes training unsteady
        config.optimizer.epochs = 4
        config.optimizer.decay_epochs = (3,)
        config.curvature.splits = ("train",)
        config.curvature.num_probes = 30
        config.sweep.trace_penalty = (0.0, 0.0003)
    return config
