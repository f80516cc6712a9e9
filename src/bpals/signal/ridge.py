"""Ridge logistic regression in numpy: damped Newton steps."""

from __future__ import annotations

import numpy as np

from bpals.signal.pairs import Matrix, sigmoid


def newton(
    inputs: Matrix, start: Matrix, present: Matrix, ridge: Matrix, weight: Matrix | None = None
) -> tuple[Matrix, Matrix]:
    """Minimise log-loss plus ridge; a step that does not help is halved.

    `present` may lie between 0 and 1, where a truth is known only so far; `weight` says how much each row counts.
    """
    heavy = np.ones(len(inputs)) if weight is None else weight
    weights, firm = np.zeros(inputs.shape[1]), np.diag(ridge)

    def tried(candidate: Matrix) -> tuple[Matrix, float]:
        z = inputs @ candidate + start
        loss = (heavy * (np.logaddexp(0, z) - present * z)).sum() + 0.5 * (ridge * candidate**2).sum()
        return z, float(loss)

    z, now = tried(weights)
    for _ in range(50):
        p = sigmoid(z)
        slope = inputs.T @ (heavy * (p - present)) + ridge * weights
        curvature = (inputs * (heavy * p * (1 - p))[:, None]).T @ inputs + firm
        step = np.linalg.solve(curvature, slope)
        z, then = tried(weights - step)
        while then > now + 1e-12 and np.abs(step).max() > 1e-9:
            step = step / 2
            z, then = tried(weights - step)
        weights, gained, now = weights - step, now - then, then
        if gained < 1e-9 * max(1.0, abs(now)):
            break
    return weights, curvature
