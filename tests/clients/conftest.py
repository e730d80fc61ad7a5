"""What the tests of clients share. tests/integration/test_clients.py runs them."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def url() -> str:
    """The address of the server: http://127.0.0.1:PORT."""
    return os.environ["TOKENLOOM_URL"]
