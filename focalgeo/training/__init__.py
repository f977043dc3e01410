"""Training: optimiser and schedules, the step, the loop, checkpoints."""
