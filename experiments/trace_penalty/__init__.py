"""What training with each form of the trace penalty does, and what it costs."""
