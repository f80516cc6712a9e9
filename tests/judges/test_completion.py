"""A chat completion, taken apart: what servers leave out, add or write in their own way."""

import pytest

from bpals.judges.openai import read_completion
from bpals.types import BadReply
from world.words import mentions


def body(message=None, *, token=("Yes", -0.1), top=(("Yes", -0.1), ("No", -2.5)), **choice):
    """A completion of one choice."""
    entries = [{"token": word, "logprob": value} for word, value in top]
    first = {"token": token[0], "logprob": token[1], "top_logprobs": entries}
    return {
        "choices": [{"message": message or {"content": "Yes"}, "logprobs": {"content": [first]}, **choice}],
        "usage": {"prompt_tokens": 73, "completion_tokens": 1},
    }


def test_the_first_token_is_read_with_its_alternatives():
    """Text, alternatives, usage; not cut, not refused."""
    (choice,) = read_completion(body(finish_reason="stop"))
    assert (choice.text, choice.cut, choice.refusal) == ("Yes", False, "")
    assert choice.top == (("Yes", -0.1), ("No", -2.5))
    assert (choice.usage.prompt, choice.usage.cached) == (73, 0)


def test_a_chosen_token_outside_the_list_counts():
    """Servers that list the tokens you named give the chosen one beside them."""
    assert read_completion(body(token=("The", -0.2)))[0].top[-1] == ("The", -0.2)


def test_a_logprob_of_null_is_left_out():
    """Some servers write null for minus infinity; that token cannot come."""
    assert read_completion(body(top=(("Yes", -0.1), ("No", None))))[0].top == (("Yes", -0.1),)


def test_usage_is_counted_once_however_many_choices():
    """Eight samples of one request have read the film once."""
    whole = body()
    whole["choices"] *= 8
    choices = read_completion(whole)
    assert len(choices) == 8
    assert sum(choice.usage.prompt for choice in choices) == 73


@pytest.mark.parametrize("usage", [None, [], {"prompt_tokens": "73"}, {"prompt_tokens": -1}, {"prompt_tokens": True}])
def test_a_count_that_is_none_is_zero(usage):
    """A server that counts nothing, or nonsense, costs no error."""
    assert read_completion(body() | {"usage": usage})[0].usage.prompt == 0


def test_a_refusal_is_told_from_a_filter():
    """Both are refused; the words say by whom."""
    refusing = read_completion(body({"content": None, "refusal": "I will not."}))[0]
    assert mentions(refusing.refusal, "refused", "'I will not.'")
    assert "content filter" in read_completion(body(finish_reason="content_filter"))[0].refusal


def test_an_error_in_a_200_is_quoted():
    """H04: what the server said stands in the fault."""
    with pytest.raises(BadReply, match="engine is not ready"):
        read_completion({"error": {"message": "engine is not ready"}})
