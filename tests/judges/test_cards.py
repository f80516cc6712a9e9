"""What is known of models: licence, training, and which one is the default."""

import re

import pytest

from bpals.judges.cards import commercial_use, default_model, known_models


def test_what_is_known_of_a_model_names_its_source():
    """Nothing about a model is stated without saying where it was read; only one is the default."""
    assert all("https://" in known.source for known in known_models().values())
    assert sum(known.default for known in known_models().values()) == 1


def test_the_default_is_open_pinned_and_served_by_one_command():
    """Apache-2.0, a commit of 40 hex digits, a command that names both, and a reason."""
    known = default_model()
    assert (known.licence, known.commercial_use) == ("Apache-2.0", "yes")
    assert re.fullmatch(r"[0-9a-f]{40}", known.revision)
    assert known.serve.startswith(f"vllm serve {known.model} --revision {known.revision} ")
    assert len(known.why) > 100


def test_every_revision_is_a_whole_commit_and_every_licence_is_named():
    """A short hash or a branch can move; a licence that forbids selling is marked."""
    for known in known_models().values():
        assert re.fullmatch(r"([0-9a-f]{40})?", known.revision)
        assert known.licence
        assert known.trained_on_target in {"yes", "no", "unknown"}
    assert known_models()["Qwen/Qwen2.5-VL-3B-Instruct"].commercial_use == "no"


@pytest.mark.parametrize(
    ("licence", "said"),
    [
        ("Apache-2.0", "yes"),
        ("MIT", "yes"),
        ("BSD-3-Clause", "yes"),
        ("CC-BY-4.0", "yes"),
        ("CC-BY-NC-4.0", "no"),
        ("cc-by-nc-sa-4.0", "no"),
        ("for research only", "no"),
        ("Gemma terms of use", "unknown"),
        ("mitigated", "unknown"),
        ("unknown", "unknown"),
        ("", "unknown"),
    ],
)
def test_a_licence_is_known_by_name_or_not_at_all(licence, said):
    """Nothing is guessed: what is not known is `unknown`."""
    assert commercial_use(licence) == said
