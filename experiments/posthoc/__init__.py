"""Which post-hoc method, how often is the choice right, and how do other libraries do."""
