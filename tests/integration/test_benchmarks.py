"""Benchmarks measure a real server. Nothing here says how fast it is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import hostile_grammars, memory, serving
from benchmarks.measurement import Level, Measurement
from benchmarks.together import gaps_together
from benchmarks.validity import validity_figures
from benchmarks.workload import Request, Workload
from tests.integration.serving import Server


def test_serving_reports_all_requests_by_clients_and_by_the_clock(
    server: Server,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "results.json"
    options = "--workload plain constrained --concurrency 2 --rate 20 --requests 3 --rounds 1"
    options += f" --max-tokens 3 --prompt-words 5 --url {server.url} --output {file}"
    monkeypatch.setattr(sys, "argv", ["serving", *options.split()])
    assert serving.main() == 0
    lines = json.loads(file.read_text())
    assert lines == [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["measured"] for line in lines] == ["machine", *["load", "medians"] * 4]
    for line in lines[1:]:
        assert line["requests"] == 3
        assert line["errors"] == 0
        assert line["tokens_per_second"] > 0
        assert 0 < line["ttft_p50_ms"] <= line["ttft_p99_ms"] <= line["latency_p99_ms"]
        assert (line["concurrency"], line.get("rate")) in {(2, None), (None, 20.0)}
        if line["workload"] == "plain":
            assert line["output_tokens"] == 9


def test_hostile_grammars_beside_nothing_and_beside_ordinary_requests(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = "--free 2 --constrained 2 --hostile 10 --max-tokens 4 --rounds 1"
    options = f"--parts crowd --url {server.url} {load}"
    monkeypatch.setattr(sys, "argv", ["hostile_grammars", *options.split()])
    assert hostile_grammars.main() == 0
    *rounds, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [line["added"] for line in rounds] == ["nothing", "nothing", "hostile", "ordinary"]
    for line in rounds:
        added = line["added_served"] + sum(count for _, count in line["added_ended"])
        assert added == (0 if line["added"] == "nothing" else 10)
    assert any("nested 3001 deep" in reason for reason in dict(rounds[2]["added_ended"]))
    assert (rounds[3]["added_served"], rounds[3]["added_tokens"]) == (10, 40)
    assert set(last) == {"free_gap_p99_ms", "hostile_to_nothing", "hostile_to_ordinary"}


def test_steps_beside_hostile_grammars(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = ["16 rows, alternatives", "deeply nested", "nested repetition"]
    options = ["--parts", "step", "--rows", "2", "--steps", "6", "--rounds", "1", "--kinds"]
    monkeypatch.setattr(sys, "argv", ["hostile_grammars", *options, *kinds])
    assert hostile_grammars.main() == 0
    lines = {line["kind"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert set(lines) == set(kinds)
    assert "nested 3001 deep" in lines["deeply nested"]["refused"]
    for kind, rows in (("16 rows, alternatives", 16), ("nested repetition", 1)):
        line = lines[kind]
        assert line["hostile_rows"] == rows
        for side in ("without", "with"):
            assert line[side]["steps"] == 6
            assert 0 < line[side]["rest_p50_ms"] < line[side]["step_p50_ms"]
        assert line["with"]["inside_max_ms"] >= line["with"]["inside_p50_ms"] >= 0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("--url http://127.0.0.1:1 --server-args=--dtype=float32", "--server-args are for servers"),
        ("--plot x.png", "--plot needs matplotlib: pip install 'tokenloom[benchmarks]'"),
    ],
)
def test_options_that_cannot_have_an_effect_are_refused(
    options: str,
    complaint: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "can_plot", lambda: False)
    with pytest.raises(SystemExit):
        serving.parse_arguments(options.split())
    assert complaint in capsys.readouterr().err


def test_one_prompt_in_two_rounds_of_clients_is_long() -> None:
    workload = Workload(prompt_words=(3,), max_tokens=8, seed="", long_words=50)
    requests = list(workload.requests(4, 16))
    assert [number for number, request in enumerate(requests) if request.is_long] == [6, 14]
    assert all(len(r.prompt.split()) >= 50 for r in requests if r.is_long)
    assert {r.max_tokens for r in requests} <= set(range(4, 13))
    assert len({r.max_tokens for r in requests}) > 1


def test_only_gaps_in_which_all_stream_are_together() -> None:
    request = Request(prompt="", max_tokens=4)
    early, late = Measurement(request, started_at=10.0), Measurement(request, started_at=10.5)
    for elapsed in (1.0, 2.0, 3.0, 5.0):  # until 15
        early.add_event(elapsed)
    for elapsed in (1.25, 1.5, 3.25, 8.5):  # from 11.75 until 19
        late.add_event(elapsed)
    assert gaps_together(Level(2, [early, late])) == [1.0, 2.0, 0.25, 1.75]


def test_only_constrained_outputs_can_be_invalid() -> None:
    free = Request(prompt="", max_tokens=4)
    constrained = Request(prompt="", max_tokens=4, schema={"type": "integer"})
    outputs = [(free, "so", False), (constrained, "7", False), (constrained, "seven", False)]
    outputs.append((constrained, "7", True))
    level = Level(1)
    for request, text, is_cut in outputs:
        measurement = Measurement(request)
        measurement.end(text, cut=is_cut)
        level.measurements.append(measurement)
    figures = validity_figures(level)
    assert (figures["whole"], figures["valid"]) == (2, 1)
    assert str(figures["first_invalid"]).endswith(": seven")


def test_memory_of_each_process_over_requests_of_all_kinds(
    server: Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = f"--url {server.url} --requests 32 --every 16 --max-tokens 2"
    monkeypatch.setattr(sys, "argv", ["memory", *options.split()])
    assert memory.main() == 0
    *samples, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert [sample["requests"] for sample in samples] == [16, 32]
    statuses = samples[-1]["statuses"]
    assert sum(statuses.values()) == 32 and len(statuses) == 16
    assert {status for status in statuses if not status.endswith(" 200")} == {"invalid 422"}
    for sample in samples:
        assert set(sample["mib"]) >= {"front", "engine", "trials"}
        assert all(part["rss"] >= part["uss"] > 0 for part in sample["mib"].values())
    assert set(last) == {"from_requests", "to_requests", "mib_per_1000_requests"}
