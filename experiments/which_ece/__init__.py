"""Who counts which example: the edge cases of ECE, asked of four libraries."""
