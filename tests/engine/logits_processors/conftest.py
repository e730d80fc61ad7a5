"""What the tests of logits processors share: these are installed, as a package has them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.processors import INSTALLED, install


@pytest.fixture(scope="package", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processors of the tests."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder, "test-processors", **INSTALLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield
