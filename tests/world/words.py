"""What a sentence must say, without the sentence: its facts, in their order."""

import re


def mentions(text, *facts):
    """Tell whether each fact (a name, a number, an option) stands in the text as a whole word, in this order."""
    squeezed, place = " ".join(text.split()), 0
    for fact in facts:
        before = r"(?<!\w)" if fact[0].isalnum() else ""
        after = r"(?!\w)" if fact[-1].isalnum() else ""
        found = re.compile(before + re.escape(fact) + after).search(squeezed, place)
        if found is None:
            return False
        place = found.end()
    return True
