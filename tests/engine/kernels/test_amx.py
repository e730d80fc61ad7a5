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
from tokenloom_engine.kernels.build import FLAGS, LIBRARY, SOURCES, build_kernels, library_name
from tokenloom_engine.kernels.levels import LEVELS
from tokenloom_engine.kernels.library import Kernels, TileRows
from tokenloom_engine.kernels.packing import PackedWeight
from tokenloom_engine.kernels.structs import Gemm, Int8Gemm
from tokenloom_engine.kernels.tile_choice import choose_tiles

LEVEL = next((level for level in LEVELS if level.tiles), None)
HAS_AMX = LEVEL is not None and LEVEL.has_tiles()
EMULATION = Path(__file__).with_name("emulated_tiles.h")
PRODUCTS = ("amx.cpp", "gemm.cpp", "int8_gemm.cpp", "parallel.cpp")
ROWS = (*range(1, 35), 48, 64, 70, 192, 193, 230)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture(scope="module")
def emulated() -> Path:
    """The matrix products with emulated tiles, compiled quickly and kept."""
    compiler = shutil.which("c++")
    if LEVEL is None or not LEVEL.runs_on(torch.cpu.get_capabilities()) or compiler is None:
        pytest.skip("needs AVX-512 with bfloat16, and a C++ compiler")
    flags = (*FLAGS, *LEVEL.flags, "-O1", "-include", str(EMULATION))

    def compile_into(folder: Path) -> None:
        sources = [str(SOURCES / source) for source in PRODUCTS]
        command = [compiler, *flags, "-shared", *sources, "-o", str(folder / LIBRARY)]
        subprocess.run(command, check=True)

    digest = hashlib.blake2b(EMULATION.read_bytes(), digest_size=8).hexdigest()
    folder = cache_folder() / "kernels" / f"emulated-{digest}-{library_name(LEVEL)}"
    return keep(folder, compile_into) / LIBRARY


@pytest.fixture(scope="module", params=["emulated", "real"])
def vectors(request: pytest.FixtureRequest) -> Kernels:
    """Kernels that may use AMX and do not yet."""
    if request.param == "emulated":
        path = request.getfixturevalue("emulated")
    elif LEVEL is None or not HAS_AMX:
        pytest.skip("this CPU has no AMX")
    else:
        path = build_kernels(LEVEL)
    assert LEVEL is not None and path is not None
    kernels = Kernels(path, LEVEL, threads=2)
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


def test_the_check_accepts_right_products_and_no_tile_reads_behind_its_rows(
    emulated: Path, tmp_path: Path
) -> None:
    program, source = tmp_path / "guarded_check", Path(__file__).with_name("guarded_check.cpp")
    library = [str(emulated), f"-Wl,-rpath,{emulated.parent}"]
    command = ["c++", *FLAGS, "-I", str(SOURCES), str(source), *library, "-o", str(program)]
    subprocess.run(command, check=True)
    assert subprocess.run([program], check=False, timeout=60).returncode == 0


def test_the_library_has_the_real_instructions() -> None:
    objdump = shutil.which("objdump")
    path = None if LEVEL is None else build_kernels(LEVEL)
    if objdump is None or path is None:
        pytest.skip("needs x86-64, a C++ compiler and objdump")
    code = subprocess.run([objdump, "-d", path], capture_output=True, text=True).stdout
    for instruction in ("ldtilecfg", "tilerelease", "tdpbusd", "tdpbf16ps"):
        assert instruction in code


@pytest.fixture
def has_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """This CPU claims to have AMX."""
    names = () if LEVEL is None else (*LEVEL.needed, *LEVEL.tiles)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True))


FAULTS = {
    "the check exits with -4": "__builtin_trap();",
    "a product differs": "return 1;",
    "the system does not permit it": "return 2;",
}


@pytest.mark.parametrize(("fault", "body"), FAULTS.items(), ids=FAULTS)
def test_a_failed_check_leaves_amx_out_with_one_warning(
    fault: str,
    body: str,
    emulated: Path,
    has_amx: None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source, faulty = tmp_path / "faulty.cpp", tmp_path / LIBRARY
    source.write_text(f'extern "C" int tokenloom_check_tiles() {{ {body} }}')
    subprocess.run(["c++", "-shared", "-fPIC", str(source), "-o", str(faulty)], check=True)
    assert LEVEL is not None
    kernels = Kernels(faulty, LEVEL, threads=1)
    assert choose_tiles(kernels) is kernels
    assert kernels.tiles == TileRows()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert fault in caplog.text


def test_a_system_without_amx_is_found_out(has_amx: None, caplog: pytest.LogCaptureFixture) -> None:
    path = None if LEVEL is None or HAS_AMX else build_kernels(LEVEL)
    if LEVEL is None or path is None:
        pytest.skip("needs x86-64 without AMX, and a C++ compiler")
    kernels = Kernels(path, LEVEL, threads=1)
    assert choose_tiles(kernels) is kernels
    assert "the system does not permit it" in caplog.text


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
    emulated: Path, has_amx: None, faster_from: int, slower_below: int, expected: TileRows
) -> None:
    class Cpu(SimulatedCpu):
        now = 0.0

        @staticmethod
        def seconds(is_bytes: bool, rows: int, by_tiles: bool) -> float:
            if not by_tiles:
                return 0.002
            return 0.001 if rows >= faster_from else 0.003 if rows < slower_below else 0.002

    assert LEVEL is not None
    chosen = choose_tiles(Cpu(emulated, LEVEL, threads=1), clock=lambda: Cpu.now)
    assert chosen.tiles == expected


@pytest.mark.parametrize("lacking", ["amx_tile", "amx_int8", "amx_bf16"])
def test_nothing_is_checked_where_there_is_no_amx(
    emulated: Path, lacking: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LEVEL is not None
    names = {*LEVEL.needed, *LEVEL.tiles} - {lacking}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(names, True))
    monkeypatch.setattr(subprocess, "run", None)
    kernels = Kernels(emulated, LEVEL, threads=1)
    assert choose_tiles(kernels) is kernels


def test_the_choice_is_told_for_the_arithmetic_in_use() -> None:
    tiles = TileRows(bfloat16=1, int8=8)
    assert tiles.describe("bfloat16") == "by AMX"
    assert tiles.describe("int8") == "by AMX from 8 rows on"
    assert tiles.describe("float32") == "without AMX"
    assert TileRows().describe("bfloat16") == "without AMX"
