"""The formats of JSON strings."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

DATE = (
    r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    r"|02-(0[1-9]|1[0-9]|2[0-8]))"
    r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
)
TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?"
    r"(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)

EXACT_FORMATS: Mapping[str, str] = {
    "date": f"^{DATE}$",
    "time": f"^{TIME}$",
    "date-time": f"^{DATE}T{TIME}$",
}
"""Where xgrammar allows too much (the thirtieth of February): patterns that do not."""

NATIVE_FORMATS: Mapping[str, tuple[float, float]] = {
    "duration": (1, inf),
    "email": (1, inf),
    "hostname": (1, inf),
    "ipv4": (1, 15),
    "ipv6": (1, 45),
    "uri": (1, inf),
    "uri-reference": (0, inf),
    "uri-template": (0, inf),
    "uuid": (36, 36),
}
"""Those that are left to xgrammar, with the least and the greatest length of such a string."""
