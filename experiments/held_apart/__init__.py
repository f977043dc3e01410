"""Learning rate, batch size, optimiser and gamma, each at every value of the others: which moves lambda_max more."""
