"""Ridge logistic regression: a few damped Newton steps in numpy."""

from __future__ import annotations

import numpy as np

from bpals.signal.pairs import Matrix, sigmoid


def newton(inputs: Matrix, start: Matrix, present: Matrix, ridge: Matrix) -> tuple[Matrix, Matrix]:
    """Minimise log-loss plus ridge; a step that does not help is halved."""
    weights = np.zeros(inputs.shape[1])
    sign = np.where(present > 0, 1.0, -1.0)

    def loss(candidate: Matrix) -> float:
        return float(np.logaddexp(0, -sign * (inputs @ candidate + start)).sum() + 0.5 * (ridge * candidate**2).sum())

    now = loss(weights)
    for _ in range(50):
        p = sigmoid(inputs @ weights + start)
        slope = inputs.T @ (p - present) + ridge * weights
        curvature = (inputs * (p * (1 - p))[:, None]).T @ inputs + np.diag(ridge)
        step = np.linalg.solve(curvature, slope)
        while (then := loss(weights - step)) > now + 1e-12 and np.abs(step).max() > 1e-9:
            step = step / 2
        weights, gained, now = weights - step, now - then, then
        if gained < 1e-9 * max(1.0, abs(now)):
            break
    return weights, curvature
