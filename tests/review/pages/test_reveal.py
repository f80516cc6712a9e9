"""What is said of a label after the lock: words that its whole interval allows."""

from world import browsers

WORDS = "pairs => import('/static/reveal.js').then(({ trustWords }) => pairs.map(trustWords))"
SAID = {
    (0.99, 0.95, 1.0): "probably right",
    (0.95, 0.1, 1.0): "uncertain",
    (0.8, 0.6, 0.97): "more likely right than wrong",
    (0.2, 0.05, 0.4): "more likely wrong than right",
    (0.02, 0.0, 0.08): "probably wrong",
    (0.05, 0.0, 0.9): "uncertain",
    (0.95, None, None): "probably right",
}


def test_trust_is_worded_by_the_ends_of_its_interval(hall, enter):
    """A trust of 95 % that may be 10 % is not called right; without an interval the trust itself is worded."""
    window = enter(hall(browsers.case_films(1)))
    pairs = [{"trust": trust, "trust_low": low, "trust_high": high} for trust, low, high in SAID]
    assert window.evaluate(WORDS, pairs) == list(SAID.values())
