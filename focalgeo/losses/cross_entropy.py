"""Cross-entropy per example."""

from focalgeo.losses.log_odds import softplus, true_class_log_odds
from focalgeo.types import Array


def cross_entropy(logits: Array, labels: Array) -> Array:
    """Cross-entropy -log p_y in nats, with p = softmax(logits).

    Args:
        logits: Float [..., classes]; bfloat16 and float16 are computed in float32.
        labels: Int [...], from 0 to classes - 1; what lies outside gives a meaningless finite value.

    Returns:
        [...] float32, non-negative. It keeps its relative accuracy where p_y rounds to 1 (the loss at a gap of 17 is
        5.7e-8, not 0), and so do its derivatives up to the third. Held by tests/losses/test_losses.py.
    """
    return softplus(-true_class_log_odds(logits, labels))
