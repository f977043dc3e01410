"""Training steps in PyTorch that do what ours do: all examples on the device, crops, flips and normalisation inside."""

import itertools
import os
from collections.abc import Callable, Iterator

# Unset, a step of ResNet-18 took three times as long on cores that other work shared: an unfair rival. Read when
# PyTorch loads OpenMP.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import torch

from experiments.benchmarks import torch_networks
from experiments.benchmarks.training_path import Steps
from focalgeo.data.batching import PADDING
from focalgeo.types import Split

EAGER = "eager"
NAMES = tuple(torch_networks.SHAPES)
Draw = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # rows [examples], offsets [examples, 2], mirrored [examples]


def device() -> torch.device:
    """The first GPU where PyTorch sees one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def modes() -> tuple[str, ...]:
    """Ways to run a step: eager, and torch.compile's modes that suit the device."""
    return (EAGER, "default", "reduce-overhead") if device().type == "cuda" else (EAGER, "default")


def ready_steps(network: str, split: Split, config, *, dtype: str, mode: str) -> tuple[Steps, float | None]:
    """Training steps by the recipe of config.optimizer, compiled, and megabytes on the GPU at their peak.

    mode: of `modes`. Each step has a random draw of its own.
    """
    torch.backends.cudnn.benchmark = True  # looks for the fastest convolutions
    torch._dynamo.reset()  # what one network made it recompile would count against the next
    on_gpu = device().type == "cuda"
    before = torch.cuda.memory_allocated() if on_gpu else 0
    step = make_step(torch_networks.network(network), split, config, dtype=dtype, mode=mode)
    draws = _draws(len(split.y), config.optimizer.batch_size)

    def steps(count: int) -> None:
        for draw in itertools.islice(draws, count):
            step(draw)
        if on_gpu:
            torch.cuda.synchronize()

    steps(1)
    if not on_gpu:
        return steps, None
    torch.cuda.reset_peak_memory_stats()
    steps(2)
    return steps, (torch.cuda.max_memory_allocated() - before) / 1e6


def make_step(
    model: torch.nn.Module, split: Split, config, *, dtype: str, mode: str = EAGER
) -> Callable[[Draw], torch.Tensor]:
    """The step draw -> mean cross-entropy, which changes the network in place: forward, backward, SGD."""
    settings = config.optimizer
    objective = Objective(model, split, config.data, dtype).to(device(), memory_format=torch.channels_last).train()
    rule = {"lr": settings.learning_rate, "momentum": settings.momentum, "weight_decay": settings.weight_decay}
    optimiser = torch.optim.SGD(model.parameters(), fused=True, **rule)
    loss_of = objective if mode == EAGER else torch.compile(objective, mode=mode)

    def step(draw: Draw) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        optimiser.zero_grad(set_to_none=True)
        loss = loss_of(*draw)
        loss.backward()
        optimiser.step()
        return loss.detach()

    return step


class Objective(torch.nn.Module):
    """The mean cross-entropy of a draw; the examples are buffers, as CUDA graphs copy what else they are given."""

    def __init__(self, model: torch.nn.Module, split: Split, pixels, dtype: str):
        """pixels: config.data. dtype: "bfloat16" for autocast to it."""
        super().__init__()
        self.model, self.low_precision = model, dtype == "bfloat16"
        mean, std = torch.tensor(pixels.mean), torch.tensor(pixels.std)
        # flat, or the memory format of the network's weights would be given to the images too
        self.register_buffer("images", torch.from_numpy(split.x).flatten(1))
        self.register_buffer("labels", torch.from_numpy(split.y).long())
        self.register_buffer("factor", 1 / (pixels.scale * std))
        self.register_buffer("shift", mean / std)
        self.shape = split.x.shape[1:]

    def forward(self, rows, offsets, mirrored):
        """Cross-entropy in nats of the examples `rows`, cropped at their offsets, and mirrored where so drawn."""
        x = self._cropped(self.images[rows].unflatten(1, self.shape), offsets, mirrored)
        x = (x.float() * self.factor - self.shift).permute(0, 3, 1, 2)  # channels last in memory
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.low_precision):
            logits = self.model(x)
        return torch.nn.functional.cross_entropy(logits.float(), self.labels[rows])

    def _cropped(self, images, offsets, mirrored):
        height, width, place = *self.shape[:2], images.device
        padded = torch.nn.functional.pad(images, (0, 0, PADDING, PADDING, PADDING, PADDING))
        rows = torch.arange(height, device=place) + offsets[:, :1]
        columns = torch.arange(width, device=place)
        columns = torch.where(mirrored[:, None], width - 1 - columns, columns) + offsets[:, 1:]
        each = torch.arange(len(images), device=place)[:, None, None]
        return padded[each, rows[:, :, None], columns[:, None, :]]


def _draws(examples: int, batch: int) -> Iterator[Draw]:
    """Every example once an epoch, in a random order, with random crops and flips; drawn on the device."""
    place = device()
    while True:
        order = torch.randperm(examples, device=place)
        for start in range(0, examples - batch + 1, batch):
            offsets = torch.randint(0, 2 * PADDING + 1, (batch, 2), device=place)
            yield order[start : start + batch], offsets, torch.rand(batch, device=place) < 0.5
