from __future__ import annotations

import json
import subprocess
import sys


def logged(*, json_output: bool) -> list[str]:
    program = (
        "import logging; from tokenloom_engine.logs import configure_logging\n"
        "from tokenloom_engine.request_id import working_for\n"
        f"configure_logging(json_output={json_output})\n"
        "logging.getLogger('here').warning('one\\ntwo %s', 'three')\n"
        "logging.getLogger('here').debug('not this')\n"
        "with working_for('mine'):\n"
        "    logging.getLogger('here').error('bad', extra={'status': 424})"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")
    return ended.stderr.splitlines()


def test_lines() -> None:
    first, _, last = logged(json_output=False)
    assert first.endswith(" WARNING here: one")
    assert last.endswith(" ERROR   here: bad status=424 request_id=mine")


def test_json_is_one_object_a_record() -> None:
    records = [json.loads(line) for line in logged(json_output=True)]
    assert all(record.pop("timestamp") for record in records)
    assert records == [
        {"level": "WARNING", "target": "here", "message": "one\ntwo three"},
        {
            "level": "ERROR",
            "target": "here",
            "message": "bad",
            "status": 424,
            "request_id": "mine",
        },
    ]
