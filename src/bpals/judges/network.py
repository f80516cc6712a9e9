"""A small network that answers for all findings at once, in plain numpy.

Two hidden layers read the evidence, which no claim of the film enters. Where the patient has no other report, a matrix
of co-labels with a zero diagonal is added to their logit: the other findings claimed on the film speak, the claim
itself cannot. One pass serves all findings, so the work is shared among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

SMALLEST_BATCH = 32
FARTHEST = 8.0
"""Evidence this many standard deviations from its mean speaks no louder: a view seen twice must not drown the rest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """How a network is fitted. Chosen by error detection on validation images; LOG.md has the variants."""

    hidden: tuple[int, int] = (64, 32)
    epochs: int = 6
    batch: int = 1024
    steps: int = 400
    """At least this many: a small record is cut into smaller batches, then read in more epochs."""
    rate: float = 3e-3
    decay: float = 1e-4
    dropout: float = 0.1
    colabel_penalty: float = 0.003


@dataclass(frozen=True, slots=True, kw_only=True)
class Films:
    """Films as a network reads them: a row a film, a column a finding or a feature."""

    evidence: Floats
    states: Floats
    """1 present, 0 absent, 0.5 uncertain, NaN silent."""
    single: npt.NDArray[np.bool_]
    """The patient has no other report: only here do the film's other claims speak."""

    def __len__(self) -> int:
        """Count the films."""
        return len(self.states)

    def __getitem__(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> Films:
        """Take some of the films."""
        return Films(evidence=self.evidence[rows], states=self.states[rows], single=self.single[rows])

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Mark the pairs that are claimed present or absent."""
        return np.asarray((self.states == 0) | (self.states == 1))

    @property
    def said(self) -> Floats:
        """The states with silence as nothing said."""
        return np.nan_to_num(self.states)


@dataclass(slots=True)
class Network:
    """The weights of one fitted network."""

    centre: Floats
    scale: Floats
    layers: list[Floats]
    offsets: list[Floats]
    colabels: Floats
    alone: Floats

    def logits(self, films: Films) -> npt.NDArray[np.float64]:
        """Answer for every film and finding; a claim speaks only to the other findings."""
        hidden = self.scaled(films.evidence)
        for layer, offset in zip(self.layers[:-1], self.offsets[:-1], strict=True):
            hidden = np.maximum(hidden @ layer + offset, 0)
        logits = hidden @ self.layers[-1] + self.offsets[-1]
        said = films.said
        logits[films.single] += said[films.single] @ self.colabels + _nothing_else(said[films.single]) * self.alone
        return logits.astype(np.float64)

    def scaled(self, evidence: Floats) -> Floats:
        """Give each feature mean 0 and deviation 1 among the films of the fit; what never varied there is silent."""
        return np.asarray(np.clip((evidence - self.centre) / self.scale, -FARTHEST, FARTHEST), dtype=np.float32)


def sigmoid(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Turn logits into probabilities without overflow."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logits, -30, 30))))


def fit(films: Films, weights: Floats, training: Training, seed: int) -> Network:
    """Fit one network on the presences and absences, a weight a film; uncertain and silent pairs say nothing."""
    draw = np.random.default_rng(seed)
    network = _start(films, training, draw)
    scaled = replace(films, evidence=network.scaled(films.evidence))
    size, epochs = _schedule(len(films), training)
    step = _adam(network, training, total=epochs * (len(films) // size))
    for _ in range(epochs):
        shuffled = draw.permutation(len(films))
        for start in range(0, len(films) - size + 1, size):
            rows = shuffled[start : start + size]
            step(_gradients(network, scaled[rows], weights[rows], training, draw))
    return network


def _schedule(films: int, training: Training) -> tuple[int, int]:
    """Choose the size of a batch and the epochs: a small record too is learned from in enough steps."""
    size = min(training.batch, max(SMALLEST_BATCH, films * training.epochs // training.steps), films)
    return size, max(training.epochs, math.ceil(training.steps / (films // size)))


def _start(films: Films, training: Training, draw: np.random.Generator) -> Network:
    """Begin at each finding's prevalence with small random layers."""
    varies = np.ptp(films.evidence, axis=0) > 0
    rate = ((films.states == 1).sum(axis=0) + 0.5) / (films.known.sum(axis=0) + 1)
    findings = films.states.shape[1]
    widths = [films.evidence.shape[1], *training.hidden, findings]
    layers = [(draw.standard_normal(pair) * np.sqrt(2 / pair[0])).astype(np.float32) for pair in pairwise(widths)]
    layers[-1] *= np.float32(0.1)
    offsets = [np.zeros(width, dtype=np.float32) for width in widths[1:]]
    offsets[-1] = np.log(rate / (1 - rate)).astype(np.float32)
    return Network(
        centre=films.evidence.mean(axis=0),
        scale=np.where(varies, films.evidence.std(axis=0), np.inf).astype(np.float32),
        layers=layers,
        offsets=offsets,
        colabels=np.zeros((findings, findings), dtype=np.float32),
        alone=np.zeros(findings, dtype=np.float32),
    )


def _nothing_else(said: Floats) -> Floats:
    """Mark the findings beside which nothing else is claimed on the film."""
    return np.asarray((said.sum(axis=1, keepdims=True) - said) == 0, dtype=np.float32)


def _gradients(
    network: Network, films: Films, weights: Floats, training: Training, draw: np.random.Generator
) -> list[Floats]:
    """Differentiate the weighted log-loss of one batch, in the order of `_parameters`."""
    active, kept = _forward(network, films.evidence, training, draw)
    logits = active[-1] @ network.layers[-1] + network.offsets[-1]
    single, said = films.single, films.said
    said_alone = said[single]
    nothing_else = _nothing_else(said_alone)
    logits[single] += said_alone @ network.colabels + nothing_else * network.alone
    share = np.asarray(weights[:, None] / len(films), dtype=np.float32)
    error = np.where(films.known, sigmoid(logits) - said, 0).astype(np.float32) * share
    colabels = said_alone.T @ error[single]
    np.fill_diagonal(colabels, 0)
    penalty = np.float32(training.colabel_penalty)
    alone = (nothing_else * error[single]).sum(axis=0) + penalty * network.alone
    layers: list[Floats] = []
    offsets: list[Floats] = []
    for depth in range(len(network.layers) - 1, -1, -1):
        layers.insert(0, active[depth].T @ error)
        offsets.insert(0, error.sum(axis=0))
        if depth:
            error = (error @ network.layers[depth].T) * (active[depth] > 0) * kept[depth - 1]
    return [*layers, *offsets, colabels + penalty * network.colabels, alone]


def _forward(
    network: Network, inputs: Floats, training: Training, draw: np.random.Generator
) -> tuple[list[Floats], list[Floats]]:
    """Run the hidden layers with dropout: what each layer was given, and what was kept."""
    active, kept = [inputs], []
    for layer, offset in zip(network.layers[:-1], network.offsets[:-1], strict=True):
        hidden = np.maximum(active[-1] @ layer + offset, 0)
        keep = (draw.random(hidden.shape, dtype=np.float32) > training.dropout) / np.float32(1 - training.dropout)
        active.append(hidden * keep)
        kept.append(keep)
    return active, kept


def _parameters(network: Network) -> list[Floats]:
    return [*network.layers, *network.offsets, network.colabels, network.alone]


def _adam(network: Network, training: Training, *, total: int) -> Callable[[list[Floats]], None]:
    """Make the function that moves every parameter by one step: Adam, a short warm-up, then a cosine to nothing."""
    parameters = _parameters(network)
    first = [np.zeros_like(parameter) for parameter in parameters]
    second = [np.zeros_like(parameter) for parameter in parameters]
    taken = 0

    def step(gradients: list[Floats]) -> None:
        nonlocal taken
        taken += 1
        rate = training.rate * min(1, taken / 50) * 0.5 * (1 + np.cos(np.pi * min(1.0, taken / total)))
        for index, gradient in enumerate(gradients):
            first[index] += 0.1 * (gradient - first[index])
            second[index] += 0.001 * (gradient**2 - second[index])
            move = (first[index] / (1 - 0.9**taken)) / (np.sqrt(second[index] / (1 - 0.999**taken)) + 1e-8)
            parameters[index] -= (rate * move).astype(np.float32)
        for layer in network.layers:
            np.multiply(layer, np.float32(1 - rate * training.decay / training.rate), out=layer)

    return step
