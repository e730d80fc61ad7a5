"""The metrics of all replicas as one exposition."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>.+)")


def join_metrics(expositions: Mapping[str, str]) -> str:
    """Return all samples with the label `replica`, which is the key of their exposition.

    Both forms are Prometheus' text format 0.0.4.
    """
    families: dict[str, list[str]] = {}
    for replica, exposition in expositions.items():
        samples: list[str] = []
        for line in exposition.splitlines():
            if line.startswith("# HELP "):
                name = line.split(" ", 3)[2]
                samples = families.setdefault(name, [line])
            elif line.startswith("# TYPE "):
                if len(samples) == 1:
                    samples.append(line)
            elif sample := _SAMPLE.fullmatch(line):
                labels = f'replica="{replica}"'
                if sample["labels"]:
                    labels += f",{sample['labels']}"
                samples.append(f"{sample['name']}{{{labels}}} {sample['value']}")
    return "".join(f"{line}\n" for lines in families.values() for line in lines)
