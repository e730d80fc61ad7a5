"""Token healing: the prompt's end comes again under a constraint, and is not reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models

from tests.engine.clocks import manual_latency
from tests.engine.conftest import Encode, MakeEngine
from tests.engine.running import Result, run, submission
from tokenloom_engine.choice import Choice
from tokenloom_engine.constraints.base import Constraint, InvalidConstraintError
from tokenloom_engine.constraints.factory import ConstraintFactory
from tokenloom_engine.constraints.spec import ConstraintKind, ConstraintSpec
from tokenloom_engine.engine import Engine
from tokenloom_engine.messages import LogprobParams, SamplingParams, StoppingParams, Submit
from tokenloom_engine.sequence import Sequence
from tokenloom_engine.vocabulary import Vocabulary

PANGRAM = "The quick brown fox jumps over the"  # ` lazy dog`
EOS = 2
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {
            "full_name": {"type": "string", "maxLength": 10},
            "colour": {"enum": ["red", "green"]},
        },
        "required": ["full_name", "colour"],
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": False},
    }
)


@pytest.mark.parametrize(
    "prompt",
    ['The link is <a href="http', PANGRAM, 'The Spanish word for "child" is "ni', "1, 2, 3"],
)
def test_a_prompt_cut_anywhere_goes_on_as_if_it_were_whole(
    engine: Engine, encode: Encode, prompt: str
) -> None:
    """What the model says of its own accord is also what it says when the beginning is given."""
    whole = run(engine, [submission(0, encode(prompt), 6)])[0]
    lengths = range(1, 9)
    healed = run(
        engine,
        [submission(n, encode(prompt), 6, constraint=_prefix(whole.text[:n])) for n in lengths],
    )
    for n in lengths:
        assert healed[n].ids == whole.ids
        assert healed[n].text == whole.text[n:]
        _check_texts(healed[n])


def test_a_healed_prompt_is_another_than_the_cut_one(engine: Engine, encode: Encode) -> None:
    cut = submission(0, encode(f"{PANGRAM} la"), 2)
    healed = submission(1, encode(PANGRAM), 2, constraint=_prefix(" la"))
    results = run(engine, [cut, healed])
    assert results[1].text == "zy dog"
    assert not results[0].text.startswith("zy")


def test_free_text_is_free_once_the_prefix_is_there(engine: Engine, encode: Encode) -> None:
    prefix = _prefix(" la")
    submit = submission(
        0, encode(PANGRAM), 5, constraint=prefix, ignore_eos=True, logit_bias={EOS: 100.0}
    )
    result = run(engine, [submit])[0]
    assert EOS not in result.ids[:1], "the prefix comes first"
    assert result.ids[1:] == [EOS] * 4, "a constraint would have ended with the first"
    assert result.finish is not None and result.finish.reason == "length"
    pool = engine._constraints.compile(prefix).result().pool
    assert len(pool) == 1, "it is back"


@pytest.mark.parametrize("stop", [[" la", "a"], ["laz"], ["zy d"], ["dog"]])
def test_stop_strings_are_of_new_text_alone(
    engine: Engine, encode: Encode, stop: list[str]
) -> None:
    submit = submission(0, encode(PANGRAM), 4, constraint=_prefix(" la"), stop=tuple(stop))
    result = run(engine, [submit])[0]
    assert result.finish is not None
    if stop[0] in "zy dog":
        assert result.text == "zy dog"[: "zy dog".index(stop[0]) + len(stop[0])]
        assert result.finish.reason == "stop_sequence"
    else:
        assert result.text.startswith("zy dog")
        assert result.finish.reason == "length"
    _check_texts(result)


@pytest.mark.parametrize("prefix", [" supercalifragilistic", "🙂", "你好，世界"])
def test_a_prefix_may_use_up_all_tokens(engine: Engine, encode: Encode, prefix: str) -> None:
    results = run(
        engine,
        [submission(n, encode("A word:"), n, constraint=_prefix(prefix)) for n in (1, 2, 3, 9)],
    )
    assert results[1].text == ""
    for n, result in results.items():
        assert len(result.ids) == n
        assert results[9].text.startswith(result.text.removesuffix("\ufffd"))
        _check_texts(result)


@pytest.mark.parametrize("forced_tokens", [True, False])
@pytest.mark.parametrize("logprobs", [LogprobParams(), LogprobParams(tokens=True, top_n_tokens=2)])
@pytest.mark.parametrize(
    ("kind", "value", "in_one"),
    [
        ("choice", '["yes", "no"]', 'start: " yes" | " no"'),
        ("json_schema", PERSON, f'start: " " %json {PERSON}'),
        ("regex", "[a-z]{2,6}!", "start: / [a-z]{2,6}!/"),
    ],
)
def test_a_grammar_goes_on_from_the_prefix(
    engine: Engine,
    encode: Encode,
    kind: ConstraintKind,
    value: str,
    in_one: str,
    logprobs: LogprobParams,
    forced_tokens: bool,
) -> None:
    """Tokens may cross the seam: the same ones as in a grammar that has the prefix in it."""
    prompt = encode("Is the sky blue? Answer:")
    specs = [ConstraintSpec(kind, value, prefix=" "), ConstraintSpec("grammar", in_one)]
    results = run(
        engine,
        [
            submission(
                id, prompt, 40, constraint=spec, logprobs=logprobs, forced_tokens=forced_tokens
            )
            for id, spec in enumerate(specs)
        ],
    )
    healed, whole = results[0], results[1]
    assert healed.ids == whole.ids
    assert f" {healed.text}" == whole.text
    _check_texts(healed)


def test_the_prefix_is_no_part_of_the_json(engine: Engine, encode: Encode) -> None:
    """Its quote does not open a string, in which stop strings would not count, or the other way
    round.
    """
    spec = ConstraintSpec("json_schema", '{"const": "a b"}', prefix=' "')
    result = run(engine, [submission(0, encode("JSON:"), 20, constraint=spec, stop=("a",))])[0]
    assert result.text == '"a b"'
    assert result.finish is not None and result.finish.reason == "eos_token"


def test_preemption_keeps_the_prefix(
    engine: Engine, make_engine: MakeEngine, encode: Encode
) -> None:
    prompt = encode("Once upon a time there was a small town")
    long = " by the sea, and all who lived there were sailors and fishermen"
    specs = [_prefix(long), ConstraintSpec("json_schema", PERSON, prefix=long), _prefix(" by the")]
    submits = [
        submission(id, prompt, 27, constraint=spec, forced_tokens=False)
        for id, spec in enumerate(specs)
    ]
    preemptions: list[int] = []
    tight = make_engine(max_batch_total_tokens=64)
    results = run(tight, submits, after_step=lambda stats: preemptions.append(stats.preemptions))
    assert sum(preemptions) > 0, "the cache was meant to be too small"
    for id, expected in run(engine, submits).items():
        assert results[id].ids == expected.ids
        assert results[id].text == expected.text
        _check_texts(results[id])


def test_a_decoder_that_drops_the_first_space() -> None:
    """As SentencePiece's does: the new text still begins where the prompt ended."""
    tokenizer = Tokenizer(models.BPE(vocab={"▁": 0, "a": 1, "b": 2, "▁a": 3, "▁ab": 4}, merges=[]))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    submit = Submit(
        id=0,
        prompt_ids=[3],
        sampling=SamplingParams(),
        stopping=StoppingParams(max_new_tokens=2),
        constraint=_prefix(" a"),
    )
    sequence = Sequence(submit, Vocabulary(tokenizer, frozenset()))
    sequence.accept(Choice(4))
    sequence.accept(Choice(3))
    output = sequence.take_output()
    assert output is not None and output.finish is not None
    assert output.finish.generated_text == "b a"
    assert [token.text for token in output.tokens] == ["b", " a"]


@pytest.fixture(scope="module")
def factory(tokenizer_file: Path) -> ConstraintFactory:
    return ConstraintFactory.for_tokenizer(
        tokenizer_file.read_text(), 49152, [EOS], latency=manual_latency()
    )


@pytest.mark.parametrize(
    "prefix",
    [
        'a"b',
        "back\\slash \\n \\u0041 \\x41",
        "\n\t\r\x0b\x00\x01\x1f\x7f",
        "é你🙂क्षि\u2028\ufffd\ue000\U0010ffff",
        "// no comment # %ignore",
        '"i',
        "/[a-z]+/",
        "@body0",
    ],
)
def test_a_prefix_is_taken_to_the_letter(
    factory: ConstraintFactory, encode: Encode, prefix: str
) -> None:
    for spec in (_prefix(prefix), ConstraintSpec("regex", "x", prefix=prefix)):
        ids = _by_character(encode, f"{prefix}x")
        assert _constraint(factory, spec).validate_tokens(ids) == len(ids)
        other = _by_character(encode, prefix[:-1] + chr(ord(prefix[-1]) ^ 1))
        assert _constraint(factory, spec).validate_tokens(other) < len(other)


SUBGRAMMARS = {
    "named like ours": [
        {"lark_grammar": 'start: "x" @body0 @body1'},
        {"name": "body0", "lark_grammar": 'start: "y"'},
        {"name": "body1", "json_schema": {"type": "boolean"}},
    ],
    "recursive": [{"name": "top", "lark_grammar": 'start: "(" @top ")" | "x"'}],
    "badly named": [{"name": "no word", "lark_grammar": 'start: "x"'}],
}


@pytest.mark.parametrize(
    ("grammar", "texts", "wrong"),
    [
        ('start: A+\nA: "a"\n%ignore " "', ["aa", "a  a", "a "], " a"),
        ('%llguidance {"no_forcing": true}\nstart: "abc" | "d"', ["abc", "d"], "e"),
        ('%llguidance {}\n%ignore /[ ]{2}/\nstart: "A" "!"', ["A  !", "A    !"], "A !"),
        ('start: "a"?', ["", "a"], "aa"),
        ("start: /(?s:[^x]*)/", ["", "é\n"], "x"),
        ('start: f "!"\nf[capture, suffix="."]: /[a-z]*/', ["ab.!"], "ab!"),
        ('root ::= "a" | "b" root', ["bba"], "bc"),
        (json.dumps({"grammars": SUBGRAMMARS["named like ours"]}), ["xytrue"], "xy1"),
        (json.dumps({"grammars": SUBGRAMMARS["recursive"]}), ["((x))"], "(y)"),
        (json.dumps({"grammars": SUBGRAMMARS["badly named"]}), ["x"], "y"),
    ],
)
def test_behind_a_prefix_a_grammar_means_the_same(
    factory: ConstraintFactory, encode: Encode, grammar: str, texts: list[str], wrong: str
) -> None:
    prefix = 'Say "é": '
    for spec in (
        ConstraintSpec("grammar", grammar),
        ConstraintSpec("grammar", grammar, prefix=prefix),
    ):
        for text in texts:
            constraint = _constraint(factory, spec)
            assert constraint.accept_tokens(_by_character(encode, spec.prefix + text))
            assert constraint.is_accepting
        refused = _by_character(encode, spec.prefix + wrong)
        taken = _constraint(factory, spec).validate_tokens(refused)
        assert len(_by_character(encode, spec.prefix)) <= taken < len(refused)


@pytest.mark.parametrize(
    "grammar", ['{"grammars": []}', '{"grammars": [1]}', '{"x": 1}', "{", "start: missing"]
)
def test_a_broken_grammar_is_refused_behind_a_prefix_too(
    factory: ConstraintFactory, grammar: str
) -> None:
    with pytest.raises(InvalidConstraintError):
        factory.validate(ConstraintSpec("grammar", grammar, prefix="a"))


def _prefix(text: str) -> ConstraintSpec:
    return ConstraintSpec("text", prefix=text)


def _check_texts(result: Result) -> None:
    assert "".join(token.text for token in result.tokens if not token.special) == result.text


def _constraint(factory: ConstraintFactory, spec: ConstraintSpec) -> Constraint:
    return factory.get_constraint(factory.compile(spec).result())


def _by_character(encode: Encode, text: str) -> list[int]:
    """The text in tokens of one character each, or less."""
    return [id for character in text for id in encode(character)]
