"""Products by AMX: of bytes as by vectors, to the bit; of bfloat16 nearly; chosen where faster.

Where the CPU has no AMX, its instructions are emulated (emulated_tiles.h).
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tokenloom_engine.cache import cache_folder, keep
from tokenloom_engine.kernels import library
from tokenloom_engine.kernels.amx import TileRows, products_are_right
from tokenloom_engine.kernels.build import (
    FLAGS,
    LIBRARY,
    SOURCES,
    build_kernels,
    find_compiler,
    library_name,
)
from tokenloom_engine.kernels.levels import LEVELS, Level
from tokenloom_engine.kernels.library import Kernels
from tokenloom_engine.kernels.packing import PackedWeight
from tokenloom_engine.kernels.structs import Gemm, Int8Gemm
from tokenloom_engine.kernels.tile_choice import choose_tiles

AMX = next((level for level in LEVELS if level.has_tiles), None)
EMULATION = Path(__file__).with_name("emulated_tiles.h")
PRODUCTS = ("amx.cpp", "gemm.cpp", "int8_gemm.cpp", "parallel.cpp")
ROWS = range(1, 71)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def _compiled(name: str, flags: tuple[str, ...]) -> Path:
    """The matrix products alone, compiled quickly and kept."""
    compiler = find_compiler()
    if AMX is None or compiler is None:
        pytest.skip("needs x86-64 and a C++ compiler")
    digest = hashlib.blake2b(EMULATION.read_bytes(), digest_size=8).hexdigest()

    def compile_into(folder: Path) -> None:
        sources = [str(SOURCES / source) for source in PRODUCTS]
        command = [compiler, *FLAGS, "-O1", *flags, "-shared", *sources]
        subprocess.run([*command, "-o", str(folder / LIBRARY)], check=True)

    folder = cache_folder() / "kernels" / f"{name}-{digest}-{library_name(AMX)}"
    return keep(folder, compile_into) / LIBRARY


@pytest.fixture(scope="module")
def emulated() -> Path:
    bf16 = next((level for level in LEVELS if level.name == "avx512_bf16"), None)
    if bf16 is None or not bf16.runs_on(torch.cpu.get_capabilities()):
        pytest.skip("needs AVX-512 with bfloat16")
    return _compiled("emulated", (*bf16.flags, "-include", str(EMULATION)))


@pytest.fixture(scope="module", params=["emulated", "real"])
def vectors(request: pytest.FixtureRequest) -> Kernels:
    """Kernels that may use AMX and do not yet."""
    if request.param == "emulated":
        path = request.getfixturevalue("emulated")
    else:
        if AMX is None or not AMX.runs_on(torch.cpu.get_capabilities()):
            pytest.skip("this CPU has no AMX")
        path = build_kernels(AMX)
    assert AMX is not None
    kernels = Kernels(path, AMX, threads=2)
    assert kernels.permit_tiles()
    return kernels


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("inputs", "outputs", "most_inputs"),
    [(576, 192, 64), (192, 133, 48), (48, 5, 16), (256, 96, None), (96, 40, 96)],
)
def test_bytes_have_the_bits_of_vectors(
    vectors: Kernels, dtype: torch.dtype, inputs: int, outputs: int, most_inputs: int | None
) -> None:
    tiles = vectors.with_tiles(TileRows(int8=1))
    weight = torch.randn(outputs, inputs, dtype=dtype) / inputs**0.5
    for bias in (None, torch.randn(outputs, dtype=dtype)):
        packed = PackedWeight.quantize(weight, bias, most_inputs)
        x = torch.randn(max(ROWS), inputs, dtype=dtype)
        expected = packed.multiply(vectors, x)
        for rows in ROWS:
            assert torch.equal(packed.multiply(tiles, x[:rows]), expected[:rows])


@pytest.mark.parametrize(("inputs", "outputs"), [(576, 192), (64, 133), (32, 5), (34, 40)])
def test_bfloat16_is_near_the_product_and_a_row_does_not_depend_on_the_others(
    vectors: Kernels, inputs: int, outputs: int
) -> None:
    tiles = vectors.with_tiles(TileRows(bfloat16=1))
    weight = torch.randn(outputs, inputs, dtype=torch.bfloat16) / inputs**0.5
    bias = torch.randn(outputs, dtype=torch.bfloat16)
    packed = PackedWeight.pack(weight, bias)
    x = torch.randn(max(ROWS), inputs, dtype=torch.bfloat16)
    whole = packed.multiply(tiles, x, torch.float32)
    exact = x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(whole.double(), exact, rtol=1e-5, atol=2e-5)
    has_whole_tiles = inputs % 32 == 0
    assert torch.equal(whole, packed.multiply(vectors, x, torch.float32)) != has_whole_tiles
    for rows in ROWS:
        assert torch.equal(packed.multiply(tiles, x[:rows], torch.float32), whole[:rows])
        assert torch.equal(packed.multiply(tiles, x[-rows:]), whole[-rows:].bfloat16())


def test_other_storage_is_left_to_vectors(vectors: Kernels) -> None:
    tiles = vectors.with_tiles(TileRows(bfloat16=1, int8=1))
    for dtype in (torch.float32, torch.float16):
        packed = PackedWeight.pack(torch.randn(64, 64, dtype=dtype), None)
        x = torch.randn(40, 64, dtype=dtype)
        assert torch.equal(packed.multiply(tiles, x), packed.multiply(vectors, x))


def test_the_check_accepts_right_products(emulated: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert products_are_right(emulated)
    assert not caplog.messages


def test_the_real_instructions_are_used_and_the_check_knows_whether_they_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = _compiled("real", () if AMX is None else AMX.flags)
    objdump = shutil.which("objdump")
    if objdump is not None:
        code = subprocess.run([objdump, "-d", str(path)], capture_output=True, text=True).stdout
        for instruction in ("ldtilecfg", "tilerelease", "tdpbusd", "tdpbf16ps"):
            assert instruction in code
    assert AMX is not None
    if not AMX.runs_on(torch.cpu.get_capabilities()):
        assert not products_are_right(path)
        assert len(caplog.messages) == 1


FAULTS = {
    "crashes": "__builtin_trap();",
    "computes something else": "return 0;",
}


@pytest.mark.parametrize("body", FAULTS.values(), ids=FAULTS)
def test_a_failed_check_loads_the_next_level_with_one_warning(
    body: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = find_compiler()
    if AMX is None or compiler is None:
        pytest.skip("needs x86-64 and a C++ compiler")
    source, faulty = tmp_path / "faulty.cpp", tmp_path / LIBRARY
    source.write_text(f'extern "C" int tokenloom_check_tiles() {{ {body} }}')
    subprocess.run([compiler, "-shared", "-fPIC", str(source), "-o", str(faulty)], check=True)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(AMX.needed, True))
    built: list[Level] = []

    def build(level: Level) -> Path:
        built.append(level)
        return faulty

    monkeypatch.setattr(library, "build_kernels", build)
    kernels = Kernels.load(threads=1)
    assert kernels is not None
    assert kernels.level.name == "avx512_bf16"
    assert [level.name for level in built] == ["avx512_amx", "avx512_bf16"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


class SimulatedCpu(Kernels):
    """Products that take a time of ours instead of computing."""

    now: float
    seconds: Callable[[bool, int, bool], float]
    """By: is it of bytes, rows, by tiles."""

    def gemm(self, args: Gemm) -> None:
        type(self).now += type(self).seconds(False, args.rows, 0 < args.tile_rows <= args.rows)

    def int8_gemm(self, args: Int8Gemm) -> None:
        type(self).now += type(self).seconds(True, args.rows, 0 < args.tile_rows <= args.rows)


@pytest.mark.parametrize(
    ("faster_from", "slower_below", "expected"),
    [
        (1, 0, TileRows(1, 1)),
        (8, 0, TileRows(1, 8)),
        (32, 8, TileRows(0, 32)),
        (99, 99, TileRows(0, 0)),
        (99, 0, TileRows(0, 0)),
    ],
)
def test_the_faster_way_is_chosen(
    emulated: Path, faster_from: int, slower_below: int, expected: TileRows
) -> None:
    class Cpu(SimulatedCpu):
        now = 0.0

        @staticmethod
        def seconds(is_bytes: bool, rows: int, by_tiles: bool) -> float:
            if not by_tiles:
                return 0.002
            return 0.001 if rows >= faster_from else 0.003 if rows < slower_below else 0.002

    assert AMX is not None
    chosen = choose_tiles(Cpu(emulated, AMX, threads=1), clock=lambda: Cpu.now)
    assert chosen.tiles == expected


def test_nothing_is_chosen_where_there_is_no_amx(emulated: Path) -> None:
    bf16 = next(level for level in LEVELS if level.name == "avx512_bf16")
    kernels = Kernels(emulated, bf16, threads=1)
    assert choose_tiles(kernels) is kernels


def test_the_choice_is_told_for_the_arithmetic_in_use() -> None:
    tiles = TileRows(bfloat16=1, int8=8)
    assert tiles.describe("bfloat16") == "by AMX"
    assert tiles.describe("int8") == "by AMX from 8 rows on"
    assert tiles.describe("float32") == "without AMX"
    assert TileRows().describe("bfloat16") == "without AMX"
