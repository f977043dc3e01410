"""Curvature and calibration of one run of a sweep, by name, from its rows."""

from collections.abc import Iterator

from focalgeo.rows import AttributionPart, Eigenvalue, Fit, Metric, Scalar, Trace, select

PARTS = ("gauss_newton", "residual", "rank_one", "scale_only")


def train_accuracy(rows: list) -> float:
    """The accuracy of the training steps of the last epoch."""
    steps = list(select(rows, Scalar, name="accuracy", split="train"))
    last = max(row.tags.epoch for row in steps) - 1
    own = [row for row in steps if row.tags.epoch > last + 1e-6]
    return sum(row.value * row.n for row in own) / sum(row.n for row in own)


def numbers(rows: list) -> Iterator[tuple[str, float]]:
    """Name -> number after training: "trace CE val", "trace own train", "ece", "ece after T", "temperature", ...

    CE is the Hessian of cross-entropy, own that of the trained loss where it is another.
    """
    rows = [row for row in rows if row.tags.epoch is None]
    for row in select(rows, Metric, split="test", method="uncalibrated"):
        yield row.name, row.value
    for row in select(rows, Metric, split="test", method="temperature_scaling", criterion="nll"):
        yield f"{row.name} after T", row.value
    for row in select(rows, Fit, method="temperature_scaling", criterion="nll"):
        yield row.name, row.value
    for kind in (Eigenvalue, Trace):
        for row in select(rows, kind):
            yield f"{row.name} {_surface(row)} {row.split}", row.value
    for row in select(rows, AttributionPart, of="trace"):
        if row.part in PARTS:
            yield f"trace, {row.part} {_surface(row)} {row.split}", row.value


def _surface(row: Eigenvalue | Trace | AttributionPart) -> str:
    return "CE" if row.loss == "cross_entropy" else "own"
