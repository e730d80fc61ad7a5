from __future__ import annotations

import pytest

from tokenloom_router.errors import OverloadedError
from tokenloom_router.permits import Permits


def test_a_full_house_refuses_at_once_and_recovers() -> None:
    permits = Permits(2)
    with permits.acquire():
        with permits.acquire():
            assert permits.in_use == 2
            with pytest.raises(OverloadedError, match="Model is overloaded"), permits.acquire():
                pytest.fail("a third permit was given")
            assert permits.in_use == 2
        with permits.acquire():
            assert permits.in_use == 2
    assert permits.in_use == 0


def test_several_permits_are_all_or_none() -> None:
    permits = Permits(3)
    with permits.acquire(2):
        with pytest.raises(OverloadedError), permits.acquire(2):
            pytest.fail("four of three permits were given")
        with permits.acquire(1):
            assert permits.in_use == 3
    assert permits.in_use == 0


def test_an_exception_returns_the_permit() -> None:
    permits = Permits(1)
    with pytest.raises(ZeroDivisionError), permits.acquire():
        _ = 1 / 0
    assert permits.in_use == 0


def test_permits_are_returned_one_by_one() -> None:
    permits = Permits(3)
    with permits.acquire(3) as lease:
        lease.release()
        assert permits.in_use == 2
        with permits.acquire():
            assert permits.in_use == 3
        lease.release()
        assert permits.in_use == 1
    assert permits.in_use == 0
