"""Gamma learned in one run by the gradient of val's NLL through a step of training, beside a sweep and FLSD-53."""
