"""Build hook of a wheel with prebuilt CPU kernels, which `make wheel` enables."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PREBUILT = "tokenloom_engine/kernels/prebuilt"
"""Folder of the wheel in which the engine looks for kernels."""


class PrebuiltKernelsHook(BuildHookInterface[BuilderConfig]):
    """Compile the kernels for every CPU level, and tag the wheel with this platform.

    Needs the dependencies of the engine, so the build must not be isolated.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the wheel. An editable install compiles at its first start.

        Raises subprocess.CalledProcessError.
        """
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        command = ["-m", "tokenloom_engine.kernels.build", "--static-runtime", self._folder.name]
        sources = str(Path(self.root, "engine"))
        environment = {**os.environ, "PYTHONPATH": sources}
        subprocess.run([sys.executable, *command], check=True, env=environment)
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][self._folder.name] = PREBUILT

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries, which the wheel contains now."""
        if version != "editable":
            self._folder.cleanup()
