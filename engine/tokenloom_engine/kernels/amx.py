"""Check of the products by AMX, and the numbers of rows that they serve.

The kernels of a level with AMX have both ways: by its tiles (csrc/amx.h) and by vectors.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tokenloom_engine.child_environment import child_environment

logger = logging.getLogger(__name__)

CHECK = "import ctypes, sys; sys.exit(0 if ctypes.CDLL(sys.argv[1]).tokenloom_check_tiles() else 1)"
CHECK_SECONDS = 60


@dataclass(frozen=True, slots=True)
class TileRows:
    """Least numbers of rows whose products are by AMX; 0: none are."""

    bfloat16: int = 0
    """0 or 1: AMX rounds differently from vectors, so a row's bits would depend on the others."""
    int8: int = 0
    """Any: both ways have the same bits."""

    def describe(self, arithmetic: str) -> str:
        """The way of products in this arithmetic, for the log."""
        least = {"bfloat16": self.bfloat16, "int8": self.int8}.get(arithmetic, 0)
        if least == 0:
            return "without AMX"
        return "by AMX" if least == 1 else f"by AMX from {least} rows on"


def products_are_right(library: Path) -> bool:
    """Whether AMX serves here: products of bytes equal those by vectors, others nearly.

    A process of its own tries it, which may crash. Logs a warning if not.
    """
    command = [sys.executable, "-I", "-c", CHECK, str(library)]
    try:
        status = subprocess.run(
            command,
            capture_output=True,
            check=False,
            env=child_environment(),
            timeout=CHECK_SECONDS,
        ).returncode
    except (OSError, subprocess.SubprocessError) as error:
        return _refuse(str(error))
    return status == 0 or _refuse(f"exit status {status}")


def _refuse(reason: str) -> bool:
    logger.warning("The check of AMX fails (%s): matrix products by AVX-512 (slower)", reason)
    return False
