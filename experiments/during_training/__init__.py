"""What cross-entropy and focal loss do to right and wrong examples while a network trains."""
