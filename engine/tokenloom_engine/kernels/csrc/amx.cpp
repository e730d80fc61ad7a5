// Permission to use the tiles of AMX, and a check of the products by them.
#include "amx.h"

#include "kernels.h"

#if TOKENLOOM_AMX

#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace tokenloom {
namespace {

// arch_prctl(2) of Linux 5.16: the state of tiles is large, so a process asks for it once.
constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;

constexpr int64_t INPUTS = 128, OUTPUTS = 80, PADDED = 96;
constexpr int64_t ROWS[] = {1, 16, 17, 32, 45, 200};

// Numbers that are alike on every CPU.
struct Random {
  uint32_t state = 1;

  int next() { return (int)((state = state * 1664525u + 1013904223u) >> 24) - 128; }
};

std::vector<BFloat16> random_numbers(int64_t count) {
  Random random;
  std::vector<BFloat16> numbers(count);
  for (BFloat16 &x : numbers) x = Storage<BFloat16>::from_float((float)random.next() / 128);
  return numbers;
}

std::vector<float> product(const std::vector<BFloat16> &inputs, const std::vector<BFloat16> &weight,
                           int64_t rows, int32_t tile_rows) {
  std::vector<float> result(rows * OUTPUTS);
  const Gemm args{inputs.data(), weight.data(), nullptr, result.data(), rows, INPUTS, OUTPUTS,
                  1,             1,             1,       tile_rows};
  tokenloom_gemm(&args);
  return result;
}

bool are_floats_near(int64_t rows) {
  const auto inputs = random_numbers(rows * INPUTS), weight = random_numbers(PADDED * INPUTS);
  const auto found = product(inputs, weight, rows, 1), expected = product(inputs, weight, rows, 0);
  for (size_t i = 0; i < found.size(); i++)
    if (!(std::abs(found[i] - expected[i]) < 1e-3f)) return false;
  return true;
}

bool are_bytes_equal(int64_t rows, int64_t group) {
  Random random;
  std::vector<int8_t> weight(PADDED * INPUTS);
  for (int8_t &x : weight) x = (int8_t)random.next();
  const auto inputs = random_numbers(rows * INPUTS);
  const std::vector<float> scales(PADDED, 0.01f);
  const std::vector<int32_t> shifts(INPUTS / group * PADDED, -1234);
  std::vector<uint8_t> quantized(rows * INPUTS);
  std::vector<float> row_scales(rows * INPUTS / group), results[2];
  for (int tile_rows = 0; tile_rows < 2; tile_rows++) {
    results[tile_rows].resize(rows * OUTPUTS);
    const Int8Gemm args{inputs.data(),     weight.data(), scales.data(),
                        shifts.data(),     nullptr,       results[tile_rows].data(),
                        quantized.data(),  row_scales.data(),
                        rows,              INPUTS,        OUTPUTS,
                        group,             1,             1,
                        1,                 tile_rows};
    tokenloom_int8_gemm(&args);
  }
  return std::memcmp(results[0].data(), results[1].data(), results[0].size() * sizeof(float)) == 0;
}

}  // namespace
}  // namespace tokenloom

int32_t tokenloom_permit_tiles() {
  return syscall(SYS_arch_prctl, tokenloom::REQUEST_PERMISSION, tokenloom::TILE_DATA) == 0;
}

int32_t tokenloom_check_tiles() {
  if (!tokenloom_permit_tiles()) return 2;
  for (const int64_t rows : tokenloom::ROWS) {
    if (!tokenloom::are_floats_near(rows)) return 1;
    for (const int64_t group : {16, 64, 128})
      if (!tokenloom::are_bytes_equal(rows, group)) return 1;
  }
  return 0;
}

#else

int32_t tokenloom_permit_tiles() { return 0; }
int32_t tokenloom_check_tiles() { return 2; }

#endif
