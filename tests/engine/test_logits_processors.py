"""Custom logits processors: each sequence has its own, and one that fails ends its own row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from tests.engine.conftest import Encode, MakeEngine
from tests.engine.processors import Faults, Skip, Skips, install
from tests.engine.running import run, submission
from tokenloom_engine.batch import Row
from tokenloom_engine.config import EngineConfig
from tokenloom_engine.constraints.spec import ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.errors import LoadError
from tokenloom_engine.logits_processors import (
    MAX_IDLE,
    LogitsProcessorFactory,
    LogitsProcessors,
    ProcessorContext,
    from_transformers,
)
from tokenloom_engine.messages import LogitsProcessorSpec, LogprobParams, Submit
from tokenloom_engine.place import RowChoices
from tokenloom_engine.prospect import Prospect
from tokenloom_engine.sampler import Sampler
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary
from tokenloom_engine.watermark import Watermark

V = 64
CONTEXT = ProcessorContext(vocab_size=V, eos_token_ids=(2,), tokenizer_file="", device="cpu")
STORY = "Once upon a time there was a small town"
JSON = ConstraintSpec(
    "json_schema",
    '{"type": "object", "properties": {"full_name": {"type": "string", "maxLength": 12}, '
    '"age_in_years": {"type": "integer", "maximum": 99}}, '
    '"required": ["full_name", "age_in_years"], "additionalProperties": false}',
)
SKIP = LogitsProcessorSpec("skip")
INSTALLED = {
    "fault": "tests.engine.processors:Faults",
    "no_repeat": "tests.engine.test_logits_processors:NO_REPEAT",
    "skip": "tests.engine.processors:Skips",
}
NO_REPEAT = from_transformers(NoRepeatNGramLogitsProcessor)
FAULTS = ["raise", "none", "shape", "resize", "dtype", "nan", "inf", "nothing"]


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The processors of the tests, as a package has them."""
    folder = tmp_path_factory.mktemp("packages")
    install(folder, "test-processors", **INSTALLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield


# The registry


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


# Pools


def test_no_two_sequences_have_one_processor() -> None:
    processors = LogitsProcessors({"skip": Skips(CONTEXT)})
    first, twin = processors.take([SKIP, SKIP])
    other = processors.take([SKIP])[0]
    assert len({id(lease.processor) for lease in (first, twin, other)}) == 3


def test_a_processor_comes_back_as_new_for_the_same_arguments() -> None:
    factory = NO_REPEAT(CONTEXT)
    processors = LogitsProcessors({"skip": Skips(CONTEXT), "no_repeat": factory})
    lease = processors.take([SKIP])[0]
    lease.apply([1], torch.zeros(V))
    assert isinstance(lease.processor, Skip) and lease.processor.num_calls == 1
    processors.give_back([lease])
    assert processors.take([SKIP])[0].processor is lease.processor
    assert lease.processor.num_calls == 0
    two, three = ({"ngram_size": n} for n in (2, 3))
    pair = factory.get_processor(two)
    factory.return_processor(pair, two)
    assert factory.get_processor(three) is not pair
    assert factory.get_processor(two) is pair


def test_only_so_many_are_kept() -> None:
    processors = LogitsProcessors({"skip": (factory := Skips(CONTEXT))})
    processors.give_back(processors.take([SKIP] * (MAX_IDLE + 10)))
    assert len(factory._idle) == MAX_IDLE


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


# Classes of transformers


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        ({"ngram_size": 0}, "strictly positive"),
        ({}, "ngram_size"),
        ({"ngram_size": 2, "more": 1}, "more"),
    ],
)
def test_a_constructor_of_transformers_judges_its_arguments(
    args: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        NO_REPEAT(CONTEXT).validate(args)


def test_fixed_arguments_and_the_device_cannot_be_given() -> None:
    seen: dict[str, Any] = {}

    class Known(SuppressTokensLogitsProcessor):
        def __init__(self, suppress_tokens: list[int], device: str = "elsewhere") -> None:
            seen.update(device=device)
            super().__init__(suppress_tokens, device)

    factory = from_transformers(Known, suppress_tokens=[3])(CONTEXT)
    scores = factory.get_processor({})([1, 2], torch.zeros(V))
    assert seen["device"] == "cpu"
    assert (scores == -torch.inf).nonzero().tolist() == [[3]]
    for name in ("suppress_tokens", "device"):
        with pytest.raises(ValueError, match=f"`{name}` cannot be given"):
            factory.validate({name: 1})


# Sampling


class Samples:
    """Draws for sequences that have processors, from given logits."""

    def __init__(self, vocabulary: Vocabulary, **factories: LogitsProcessorFactory) -> None:
        self._vocabulary = vocabulary
        self._processors = LogitsProcessors(factories)

    def sequence(self, *specs: LogitsProcessorSpec, **settings: Any) -> Sequence:  # noqa: ANN401
        logprobs = LogprobParams(tokens=True, top_n_tokens=V, processed=True)
        submit = submission(0, [60, 61], 99, logprobs=logprobs, logits_processors=specs, **settings)
        sequence = Sequence(submit, self._vocabulary)
        sequence.processors = self._processors.take(specs)
        return sequence

    def draw(
        self,
        logits: torch.Tensor,
        *sequences: Sequence,
        allowed: list[int] | None = None,
        num_tokens: int = V,
    ) -> list[RowChoices]:
        """One token for each; the last one may have a constraint."""
        bitmask = None
        if allowed is not None:
            bits = np.zeros(V, dtype=np.uint8)
            bits[allowed] = 1
            bitmask = np.packbits(bits, bitorder="little").view(np.int32)
        last = len(sequences) - 1
        draws = {
            row: [Prospect(sequence, allowed=bitmask if row == last else None)]
            for row, sequence in enumerate(sequences)
        }
        rows = [Row(s, len(s.ids) - 1, 1, is_prefill=False) for s in sequences]
        return Sampler(num_tokens, Watermark(0.5, 2.0)).sample(
            logits.expand(len(rows), V), rows, draws
        )


class Write:
    """Sets scores by ids, and remembers what they were."""

    def __init__(self, values: Mapping[str, float]) -> None:
        self.before: dict[int, float] = {}
        self._values = {int(id): value for id, value in values.items()}

    def __call__(self, ids: Any, scores: torch.Tensor, /) -> torch.Tensor:  # noqa: ANN401
        self.before = {id: float(scores[id]) for id in self._values}
        for id, value in self._values.items():
            scores[id] = value
        return scores

    def reset(self) -> None:
        self.before = {}


class Writes(Skips):
    """Makes one that its arguments describe."""

    def create(self, args: Mapping[str, Any]) -> Write:  # type: ignore[override]
        return Write(args)


@pytest.fixture
def samples(vocabulary: Vocabulary) -> Samples:
    return Samples(vocabulary, write=Writes(CONTEXT), fault=Faults(CONTEXT), min_p=MIN_P(CONTEXT))


MIN_P = from_transformers(MinPLogitsWarper)
LOGITS = torch.linspace(0, 4, V)


def write(values: dict[int, float]) -> LogitsProcessorSpec:
    return LogitsProcessorSpec("write", {str(id): value for id, value in values.items()})


def test_processors_follow_the_penalties_in_the_order_given(samples: Samples) -> None:
    sequence = samples.sequence(
        write({60: 7.0}), write({60: 9.0, 5: 8.0}), logit_bias={5: 3.0}, repetition_penalty=2.0
    )
    first, second = (lease.processor for lease in sequence.processors)
    choice = samples.draw(LOGITS, sequence)[0].drawn
    assert isinstance(first, Write) and isinstance(second, Write)
    assert first.before[60] == pytest.approx(float(LOGITS[60]) / 2)
    assert second.before == {60: 7.0, 5: pytest.approx(float(LOGITS[5]) + 3)}
    assert choice is not None and choice.id == 60


def test_the_minimum_length_and_the_constraint_outrank_processors(samples: Samples) -> None:
    late = samples.sequence(write({2: 50.0, 9: 40.0}), min_new_tokens=1)
    assert [c.drawn.id for c in samples.draw(LOGITS, late) if c.drawn] == [9]
    held = samples.sequence(write({2: 50.0}))
    assert [c.drawn.id for c in samples.draw(LOGITS, held, allowed=[3, 4]) if c.drawn] == [4]
    none_left = samples.sequence(write({3: -torch.inf, 4: -torch.inf}))
    choices = samples.draw(LOGITS, none_left, allowed=[3, 4])
    assert [c.drawn.id for c in choices if c.drawn] == [4]
    assert late.end_token_ids == {2}


def test_a_token_without_alternative_skips_processors(samples: Samples) -> None:
    sequence = samples.sequence(LogitsProcessorSpec("fault", {"kind": "raise"}))
    assert [c.drawn.id for c in samples.draw(LOGITS, sequence, allowed=[31]) if c.drawn] == [31]
    assert samples.draw(LOGITS, sequence, allowed=[30, 31])[0].error is not None


def test_ids_without_a_token_stay_so(samples: Samples) -> None:
    sequence = samples.sequence(write({63: 50.0}))
    choice = samples.draw(LOGITS, sequence, num_tokens=60)[0].drawn
    assert choice is not None and choice.id == 59
    written = sequence.processors[0].processor
    assert isinstance(written, Write) and written.before == {63: -torch.inf}


def test_what_is_drawn_from_is_what_processors_left(samples: Samples) -> None:
    spec = LogitsProcessorSpec("min_p", {"min_p": 0.9})
    choice = samples.draw(LOGITS, samples.sequence(spec))[0].drawn
    assert choice is not None and choice.top is not None
    probs = LOGITS.softmax(0)
    left = (probs >= 0.9 * probs.max()).nonzero().flatten().tolist()
    assert {top.id for top in choice.top} == set(left)


@pytest.mark.parametrize(
    "settings", [{}, {"greedy": False, "top_p": 0.9, "typical_p": 0.8}], ids=str
)
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_ends_its_own_row(
    samples: Samples, vocabulary: Vocabulary, kind: str, settings: dict[str, Any]
) -> None:
    faulty = samples.sequence(LogitsProcessorSpec("fault", {"kind": kind}), **settings)
    others = [samples.sequence(write({60: 9.0}), **settings) for _ in range(2)]
    alone = samples.draw(LOGITS, samples.sequence(write({60: 9.0}), **settings))[0]
    before, bad, after = samples.draw(LOGITS, others[0], faulty, others[1])
    assert bad.drawn is None and bad.error is not None
    assert bad.error.startswith("the logits processor fault failed: ") or kind == "nothing"
    assert "of no interest" not in bad.error
    for choices in (before, after):
        assert choices.error is None
        assert choices.drawn == alone.drawn


# The engine


@pytest.fixture(scope="module")
def engine(model_path: Path, installed: None) -> Iterator[Engine]:
    config = EngineConfig(
        model_id=str(model_path),
        dtype="float32",
        max_batch_total_tokens=4096,
        block_size=16,
        speculate=4,  # to no effect: processors may remember
    )
    engine = Engine(config)
    yield engine
    engine.close()
    assert Skips.lent == [], "all came back"


def test_a_class_of_transformers_does_what_it_does_there(
    engine: Engine, encode: Encode, model_path: Path
) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32)
    ids = encode("one two one two one two one")
    expected = model.generate(
        torch.tensor([ids]), max_new_tokens=20, do_sample=False, no_repeat_ngram_size=2
    )[0, len(ids) :].tolist()
    spec = LogitsProcessorSpec("no_repeat", {"ngram_size": 2})
    results = run(
        engine,
        [submission(0, ids, 20, logits_processors=(spec,)), submission(1, ids, 20)],
        steps_between=1,
    )
    assert results[0].ids == expected
    assert results[1].ids != expected


def test_each_sequence_has_its_own_whatever_else_runs(
    engine: Engine, make_engine: MakeEngine, encode: Encode
) -> None:
    def submits() -> list[Submit]:
        drawn: dict[str, Any] = {"greedy": False, "seed": 4}
        return [
            submission(0, encode(STORY), 12, logits_processors=(SKIP,)),
            submission(1, encode(STORY), 12, logits_processors=(SKIP, SKIP), **drawn),
            submission(2, encode(STORY), 12, logits_processors=(SKIP,), constraint=JSON),
            submission(3, encode(STORY), 12),
        ]

    alone = {s.id: run(engine, [s])[s.id].ids for s in submits()}
    assert alone[0] != alone[3]
    crowd = run(engine, submits(), steps_between=1)
    assert {id: result.ids for id, result in crowd.items()} == alone
    tight = make_engine(max_batch_total_tokens=48)
    preemptions: list[int] = []
    results = run(tight, submits(), after_step=lambda s: preemptions.append(s.preemptions))
    assert sum(preemptions) > 0
    assert {id: result.ids for id, result in results.items()} == alone


def test_forced_tokens_skip_processors(engine: Engine, encode: Encode) -> None:
    def submit(*, forced_tokens: bool) -> Submit:
        return submission(
            0,
            encode("A person: "),
            50,
            constraint=JSON,
            logits_processors=(SKIP,),
            forced_tokens=forced_tokens,
        )

    together = run(engine, [submit(forced_tokens=True)])[0]
    single = run(engine, [submit(forced_tokens=False)])[0]
    assert together.ids == single.ids
    assert sum(token.forced for token in together.tokens) > 5


def test_processors_come_back_on_every_way_out(engine: Engine, encode: Encode) -> None:
    Skips.lent.clear()
    ids = encode(STORY)
    fault = LogitsProcessorSpec("fault", {"kind": "nan", "at_call": 3})
    invalid = LogitsProcessorSpec("skip", {"more": 1})
    results = run(
        engine,
        [
            submission(0, ids, 4, logits_processors=(SKIP,)),
            submission(1, ids, 9, logits_processors=(SKIP, fault)),
            submission(2, ids, 4, logits_processors=(SKIP, invalid)),
            submission(3, ids, logits_processors=(SKIP,), constraint=ConstraintSpec("regex", "(")),
            submission(4, ids, 5000, logits_processors=(SKIP,)),
            submission(5, ids, 4),
        ],
    )
    assert results[0].finish is not None and results[5].finish is not None
    assert results[1].error == "the logits processor fault failed: it returned NaN or +inf"
    assert len(results[1].tokens) == 2
    assert results[2].refusal == "`logits_processors`: skip: it takes nothing"
    assert results[3].refusal is not None and results[4].error is not None
    assert Skips.lent == []
    for id in (0, 1):  # waiting, and running
        engine.submit(submission(id, ids, 9, logits_processors=(SKIP,)))
        for _ in range(2 * id):
            engine.step()
        assert len(Skips.lent) == 1
        engine.abort(id)
        assert Skips.lent == []


def test_a_processor_that_is_not_installed(engine: Engine, encode: Encode) -> None:
    spec = LogitsProcessorSpec("absent")
    result = run(engine, [submission(0, encode(STORY), logits_processors=(spec,))])[0]
    assert result.refusal == "`logits_processors`: absent: it is not installed"
