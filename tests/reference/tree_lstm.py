"""The binary Tree-LSTM by plain recursion over nested tuples, in float64, from its equations; imports no focalgeo.

Source: Tai, Socher & Manning, arXiv 1503.00075, Eqs. 9-14 with N = 2.
"""

import re

import numpy as np


def parse(text):
    """A tree in Penn Treebank form, "(3 (2 so) (4 good))", as (label, left, right) and leaves (label, word)."""
    # words may hold a space that does not break, "3 1/2" in the Stanford Sentiment Treebank: so not \s
    tokens = iter(re.findall(r"[()]|[^ ()]+", text))

    def node():
        label, parts = int(next(tokens)), []
        for token in tokens:
            if token == ")":
                return (label, *parts)
            parts.append(node() if token == "(" else token)
        raise ValueError(f"no end: {text}")

    assert next(tokens) == "("
    return node()


def node_logits(tree, weights, vectors):
    """Logits of the leaves in the order of the sentence, and of the inner nodes, children before parents.

    weights: "Wi", "Wo", "Wu" [hidden, size]; "Ui", "Uo", "Uu" (left, right), "Uf" ((left left, left right), (right
    left, right right)) [hidden, hidden]; "bi", "bo", "bu", "bf" [hidden]; "V" [classes, hidden], "bv". vectors: word ->
    [size].
    """
    leaves, inner = [], []

    def state(node):
        w = weights
        if len(node) == 2:
            x = vectors[node[1]]
            i, o = _sigmoid(w["Wi"] @ x + w["bi"]), _sigmoid(w["Wo"] @ x + w["bo"])
            c = i * np.tanh(w["Wu"] @ x + w["bu"])
        else:
            (h_l, c_l), (h_r, c_r) = state(node[1]), state(node[2])
            i = _sigmoid(w["Ui"][0] @ h_l + w["Ui"][1] @ h_r + w["bi"])
            f_l = _sigmoid(w["Uf"][0][0] @ h_l + w["Uf"][0][1] @ h_r + w["bf"])
            f_r = _sigmoid(w["Uf"][1][0] @ h_l + w["Uf"][1][1] @ h_r + w["bf"])
            o = _sigmoid(w["Uo"][0] @ h_l + w["Uo"][1] @ h_r + w["bo"])
            u = np.tanh(w["Uu"][0] @ h_l + w["Uu"][1] @ h_r + w["bu"])
            c = i * u + f_l * c_l + f_r * c_r
        h = o * np.tanh(c)
        (leaves if len(node) == 2 else inner).append(w["V"] @ h + w["bv"])
        return h, c

    state(tree)
    return leaves, inner


def _sigmoid(x):
    return 1 / (1 + np.exp(-x))
