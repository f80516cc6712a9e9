"""Small datasets and servers that the tests of several tasks ask judges about."""

import pytest

from world import datasets


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two dozen films; read them, do not change them."""
    return datasets.write(tmp_path_factory.mktemp("small"), datasets.SMALL)


@pytest.fixture
def server():
    """A server whose answers are a function of the image and the question."""
    from world.chat_server import FaultyServer  # needs packages that `make quick` has not

    with FaultyServer() as running:
        yield running
