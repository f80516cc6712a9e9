"""Train on labels you do not wholly trust: each label weighs as much as its trust, distrusted labels weigh nothing.

python examples/train_with_weights.py        uses the audit in ./audit, or makes one of the embedded NIH record first

The features here are noise, with a trace of the label for one finding in them: put your own in their place.
"""

import numpy as np

import bpals
from bpals.errors import WorkspaceError


def load_or_audit(workspace="audit"):
    """The signal of the audit that is there, or of a new one."""
    try:
        return bpals.load_signal(workspace)
    except WorkspaceError:
        return bpals.audit(workspace=workspace).signal


def train(features, labels, weights, steps=200, rate=1.0):
    """Logistic regression, one column a finding; where a label is NaN or a weight 0, nothing is learned."""
    known = ~np.isnan(labels)
    target, weight = np.where(known, labels, 0.0), np.where(known, weights, 0.0)
    weight = weight / np.maximum(weight.sum(axis=0), 1e-9)
    coefficients = np.zeros((features.shape[1], labels.shape[1]))
    for _ in range(steps):
        predicted = 1.0 / (1.0 + np.exp(-features @ coefficients))
        coefficients -= rate * features.T @ (weight * (predicted - target))
    return coefficients


def main():
    """From the audit's signal to a trained model."""
    signal = load_or_audit()
    labels = bpals.mask(signal)  # 1.0, 0.0, or NaN where the label is distrusted: TorchXRayVision's convention
    trust = bpals.weights(signal, floor=0.05)  # one row a film, one column a finding
    weights = trust.select(labels.findings).fill_null(0.0).to_numpy()

    draw = np.random.default_rng(0)
    features = draw.normal(size=(len(labels.image_ids), 8))
    features[:, 0] += np.nan_to_num(labels.values[:, 0])
    coefficients = train(features, labels.values, weights)

    print(f"{len(labels.image_ids):,} films, {len(labels.findings)} findings")
    print(f"{np.isnan(labels.values).mean():.1%} of the labels are masked")
    print(f"coefficient of the telling feature for {labels.findings[0]}: {coefficients[0, 0]:.2f}")


if __name__ == "__main__":
    main()
