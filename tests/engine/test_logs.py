from __future__ import annotations

import json
import subprocess
import sys


def logged(*, json_output: bool) -> list[str]:
    program = (
        "import logging; from tokenloom_engine.logs import configure_logging\n"
        f"configure_logging(json_output={json_output})\n"
        "logging.getLogger('here').warning('one\\ntwo %s', 'three')\n"
        "logging.getLogger('here').debug('not this')"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "")
    return ended.stderr.splitlines()


def test_lines() -> None:
    first, _ = logged(json_output=False)
    assert first.endswith(" WARNING here: one")


def test_json_is_one_object_a_record() -> None:
    (line,) = logged(json_output=True)
    record = json.loads(line)
    assert record.pop("timestamp")
    assert record == {"level": "WARNING", "target": "here", "message": "one\ntwo three"}
