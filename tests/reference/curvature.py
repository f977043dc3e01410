"""Dense float64 oracles for curvature, in NumPy: slow and plain."""

import itertools

import numpy as np


def with_spectrum(eigenvalues, seed=0):
    """A symmetric matrix with these eigenvalues and random eigenvectors."""
    eigenvalues = np.asarray(eigenvalues, np.float64)
    basis, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(eigenvalues.size,) * 2))
    matrix = basis @ np.diag(eigenvalues) @ basis.T
    return (matrix + matrix.T) / 2


def sign_quadratic_forms(matrix):
    """Values of v' H v for every sign vector v."""
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=len(matrix))))
    return np.einsum("si,ij,sj->s", signs, matrix, signs)


class MLP:
    """tanh network with mean cross-entropy; parameters as one flat vector in the order b1, w1, b2, w2."""

    def __init__(self, sizes=(5, 4, 3), examples=12, seed=0):
        random = np.random.default_rng(seed)
        self.x = random.normal(size=(examples, sizes[0]))
        self.y = random.integers(0, sizes[2], examples)
        self.shapes = [(sizes[1],), (sizes[0], sizes[1]), (sizes[2],), (sizes[1], sizes[2])]
        self.flat = random.normal(size=sum(int(np.prod(shape)) for shape in self.shapes))

    def tree(self):
        b1, w1, b2, w2 = self.unflatten(self.flat)
        return {"first": {"bias": b1, "kernel": w1}, "second": {"bias": b2, "kernel": w2}}

    def unflatten(self, flat):
        stops = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(flat, stops), self.shapes, strict=True)]

    def logits(self, flat):
        b1, w1, b2, w2 = self.unflatten(flat)
        return np.tanh(self.x @ w1 + b1) @ w2 + b2

    def probs(self, flat):
        exp = np.exp(self.logits(flat))
        return exp / exp.sum(1, keepdims=True)

    def gradient(self, flat):
        b1, w1, _, w2 = self.unflatten(flat)
        hidden = np.tanh(self.x @ w1 + b1)
        error = (self.probs(flat) - np.eye(w2.shape[1])[self.y]) / len(self.y)
        back = (error @ w2.T) * (1 - hidden**2)
        return np.concatenate([back.sum(0), (self.x.T @ back).ravel(), error.sum(0), (hidden.T @ error).ravel()])

    def hessian(self):
        """Central differences of the gradient, extrapolated once; good to about 1e-9."""
        matrix = _jacobian(self.gradient, self.flat)
        return (matrix + matrix.T) / 2

    def ggn(self):
        """Sum over examples of J' (diag p - p p') J, divided by their number."""
        probs = self.probs(self.flat)
        jacobian = _jacobian(lambda flat: self.logits(flat).ravel(), self.flat).reshape(*probs.shape, -1)
        inner = probs[:, :, None] * np.eye(probs.shape[1]) - probs[:, :, None] * probs[:, None, :]
        return np.einsum("nci,ncd,ndj->ij", jacobian, inner, jacobian) / len(probs)


def _jacobian(function, point, step=1e-3):
    def central(size):
        units = size * np.eye(point.size)
        return np.stack([(function(point + unit) - function(point - unit)) / (2 * size) for unit in units], axis=-1)

    return (4 * central(step / 2) - central(step)) / 3
