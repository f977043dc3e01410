"""Surfaces whose Hessian is known in closed form: which estimator of its curvature to take, and when its error lies."""
