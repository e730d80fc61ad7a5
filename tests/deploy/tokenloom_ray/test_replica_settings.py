"""Flags in the args of a Ray application."""

from __future__ import annotations

import re

import pytest

from tokenloom_ray.replica_settings import ELSEWHERE, replica_settings
from tokenloom_server.settings import Settings


def test_flags_are_settings() -> None:
    settings = replica_settings({"model_id": "a/b", "max_batch_size": 4}, num_cpus=0)
    assert (settings.model_id, settings.max_batch_size) == ("a/b", 4)
    assert settings.num_threads is None


def test_the_engine_has_as_many_threads_as_the_replica_has_cpus() -> None:
    assert replica_settings({}, num_cpus=3).num_threads == 3
    assert replica_settings({"num_threads": 2}, num_cpus=3).num_threads == 2


@pytest.mark.parametrize("name", ELSEWHERE)
def test_flags_without_effect_are_refused(name: str) -> None:
    assert name in Settings.model_fields
    with pytest.raises(ValueError, match=f"`{name}` in args has no effect; see "):
        replica_settings({name: Settings.model_fields[name].default}, num_cpus=0)


def test_unknown_and_wrong_flags_are_refused() -> None:
    with pytest.raises(ValueError, match="`modelid` in args is no flag of `tokenloom serve`"):
        replica_settings({"modelid": "a/b"}, num_cpus=0)
    with pytest.raises(ValueError, match=re.escape("`max_batch_size` must be > 0")):
        replica_settings({"max_batch_size": 0}, num_cpus=0)
