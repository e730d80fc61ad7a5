"""The registry: what is found, lent and given back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.processors import CONTEXT, INSTALLED, SKIP, Faults, Skips, V, install
from tokenloom_engine.errors import LoadError
from tokenloom_engine.logits_processors import LogitsProcessors
from tokenloom_engine.messages import LogitsProcessorSpec


def test_what_is_installed_is_found_by_name() -> None:
    assert LogitsProcessors.load(CONTEXT).names == list(INSTALLED)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("tests.no_such_module:Skips", "bad: ModuleNotFoundError: No module named 'tests.no_such"),
        ("tests.engine.processors:Missing", "bad: AttributeError: "),
        ("tests.engine.processors:Skip", "bad: TypeError: "),
        ("builtins:str", "bad is no factory: builtins:str makes a str"),
    ],
)
def test_what_cannot_be_loaded_names_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, reason: str
) -> None:
    install(tmp_path, "bad", broken=target)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError) as raised:
        LogitsProcessors.load(CONTEXT)
    assert f"the logits processor broken of the package {reason}" in str(raised.value)


def test_two_packages_cannot_have_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "other", skip="tests.engine.processors:Skips")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LoadError, match=r"other.* and .*test-processors|test-processors.*other"):
        LogitsProcessors.load(CONTEXT)


def test_no_two_sequences_have_one_processor() -> None:
    processors = LogitsProcessors({"skip": Skips(CONTEXT)})
    first, twin = processors.take([SKIP, SKIP])
    other = processors.take([SKIP])[0]
    assert len({id(lease.processor) for lease in (first, twin, other)}) == 3


def test_a_processor_that_failed_is_dropped() -> None:
    spec = LogitsProcessorSpec("fault", {"kind": "raise"})
    processors = LogitsProcessors({"fault": (factory := Faults(CONTEXT))})
    lease = processors.take([spec])[0]
    with pytest.raises(Exception, match="the logits processor fault failed: KeyError$"):
        lease.apply([1], torch.zeros(V))
    processors.give_back([lease])
    assert not factory._idle


def test_those_before_a_bad_one_are_given_back() -> None:
    Skips.lent.clear()
    processors = LogitsProcessors({"skip": Skips(CONTEXT), "fault": Faults(CONTEXT)})
    for bad in (
        LogitsProcessorSpec("absent"),
        LogitsProcessorSpec("skip", {"more": 1}),
        LogitsProcessorSpec("fault", {"kind": "validate"}),
    ):
        with pytest.raises(Exception, match=bad.name):
            processors.take([SKIP, bad])
        assert Skips.lent == []
