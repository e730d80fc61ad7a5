// Compares each kernel with plain loops in double: for CPUs that the Python tests do not run on.
// Prints what differs, and exits with 1 if anything does.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "kernels.h"
#include "storage.h"

using namespace tokenloom;

namespace {

constexpr int THREADS = 2;
bool is_right = true;

// The same numbers on every CPU.
struct Random {
  uint64_t state = 1;

  float next() {  // from -1 to 1
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(state >> 32) * 0x1p-31f;
  }

  template <class T>
  std::vector<T> many(int64_t count, float scale = 1.f) {
    std::vector<T> numbers(count);
    for (T &x : numbers) x = Storage<T>::from_float(next() * scale);
    return numbers;
  }
};

void check(const std::string &name, double found, double expected, double tolerance) {
  if (std::abs(found - expected) <= tolerance * (1 + std::abs(expected))) return;
  std::printf("%s: %.9g and not %.9g\n", name.c_str(), found, expected);
  is_right = false;
}

template <class T>
double number(T x) {
  return Storage<T>::to_float(x);
}

template <class T>
constexpr int CODE = std::is_same_v<T, float> ? 0 : std::is_same_v<T, BFloat16> ? 1 : 2;
template <class T>
constexpr double ROUNDING = std::is_same_v<T, float> ? 2e-6 : std::is_same_v<T, BFloat16> ? 0x1p-7 : 0x1p-10;

// The layout of gemm.cpp and int8_gemm.cpp, `per_word` numbers in a word.
template <class T>
std::vector<T> panels(const std::vector<T> &weight, int64_t outputs, int64_t inputs, int per_word) {
  std::vector<T> packed((outputs + 31) / 32 * 32 * inputs, T{});
  for (int64_t o = 0; o < outputs; o++)
    for (int64_t i = 0; i < inputs; i++)
      packed[((o / 32 * (inputs / per_word) + i / per_word) * 32 + o % 32) * per_word + i % per_word] =
          weight[o * inputs + i];
  return packed;
}

template <class T>
void check_gemm() {
  const int64_t inputs = 96, outputs = 70;
  Random random;
  const auto weight = random.many<T>(outputs * inputs), bias = random.many<T>(outputs);
  const auto packed = panels(weight, outputs, inputs, Storage<T>::PER_WORD);
  for (const int64_t rows : {1, 2, 5, 13}) {
    const auto x = random.many<T>(rows * inputs);
    std::vector<float> result(rows * outputs);
    const Gemm args{x.data(), packed.data(), bias.data(), result.data(), rows, inputs, outputs,
                    CODE<T>, 1, THREADS};
    tokenloom_gemm(&args);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t o = 0; o < outputs; o++) {
        double sum = number(bias[o]);
        for (int64_t i = 0; i < inputs; i++)
          sum += number(x[r * inputs + i]) * number(weight[o * inputs + i]);
        check("gemm", result[r * outputs + o], sum, 2e-5);
      }
  }
}

// To the last bit but one: sums in a group are exact.
template <class T>
void check_int8_gemm() {
  const int64_t inputs = 192, outputs = 70, group = 64, groups = inputs / group, padded = 96;
  Random random;
  std::vector<int8_t> weight(outputs * inputs);
  for (int8_t &w : weight) w = (int8_t)std::lrint(random.next() * 127);
  const auto packed = panels(weight, outputs, inputs, 4);
  auto scales = random.many<float>(padded, 0.01f);
  std::vector<int32_t> shifts(groups * padded);
  for (int64_t o = 0; o < outputs; o++)
    for (int64_t i = 0; i < inputs; i++)
      shifts[i / group * padded + o] -= 128 * weight[o * inputs + i];
  for (const int64_t rows : {1, 2, 5, 13}) {
    auto x = random.many<T>(rows * inputs);
    x[3] = Storage<T>::from_float(50.f);
    std::vector<float> result(rows * outputs), row_scales(rows * groups);
    std::vector<int16_t> quantized(rows * inputs);
    const Int8Gemm args{x.data(), packed.data(), scales.data(), shifts.data(), nullptr, result.data(),
                        quantized.data(), row_scales.data(), rows, inputs, outputs, group,
                        CODE<T>, 1, THREADS};
    tokenloom_int8_gemm(&args);
    for (int64_t r = 0; r < rows; r++)
      for (int64_t o = 0; o < outputs; o++) {
        double total = 0;
        for (int64_t g = 0; g < groups; g++) {
          const T *part = x.data() + r * inputs + g * group;
          float largest = 1e-8f;
          for (int64_t i = 0; i < group; i++) largest = std::max(largest, std::abs((float)number(part[i])));
          int64_t sum = 0;
          for (int64_t i = 0; i < group; i++)
            sum += ((int)((float)number(part[i]) * (127.f / largest) + 128.5f) - 128) *
                   weight[o * inputs + g * group + i];
          total += sum * (double)(largest / 127.f);
        }
        check("int8_gemm", result[r * outputs + o], total * scales[o], 1e-6);
      }
  }
}

template <class T>
void check_rows() {
  const int64_t rows = 3, width = 64;
  Random random;
  auto residual = random.many<T>(rows * width), before = residual;
  const auto delta = random.many<T>(rows * width), weight = random.many<T>(width);
  std::vector<T> result(rows * width);
  const RmsNorm norm{residual.data(), delta.data(), weight.data(), result.data(), rows, width, 1e-5f,
                     CODE<T>, THREADS};
  tokenloom_rms_norm(&norm);
  for (int64_t r = 0; r < rows; r++) {
    double squares = 0;
    for (int64_t i = r * width; i < (r + 1) * width; i++) {
      check("residual", number(residual[i]), number(before[i]) + number(delta[i]), ROUNDING<T>);
      squares += number(residual[i]) * number(residual[i]);
    }
    for (int64_t i = 0; i < width; i++)
      check("rms_norm", number(result[r * width + i]),
            number(residual[r * width + i]) / std::sqrt(squares / width + 1e-5) * number(weight[i]),
            2 * ROUNDING<T>);
  }
  const auto gate_up = random.many<T>(rows * 2 * width, 20.f);
  const SiluMultiply silu{gate_up.data(), result.data(), rows, width, CODE<T>, THREADS};
  tokenloom_silu_multiply(&silu);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < width; i++) {
      const double gate = number(gate_up[r * 2 * width + i]), up = number(gate_up[r * 2 * width + width + i]);
      check("silu", number(result[r * width + i]), gate / (1 + std::exp(-gate)) * up, 2 * ROUNDING<T>);
    }
  const std::vector<int64_t> positions{2, 0, 1};
  const auto cosines = random.many<float>(3 * width / 2), sines = random.many<float>(3 * width / 2);
  auto heads = random.many<T>(rows * width), turned = heads;
  const Rotary rotary{turned.data(), width, nullptr, cosines.data(), sines.data(), positions.data(),
                      rows, 1, (int32_t)width, 0.f, CODE<T>, THREADS};
  tokenloom_rotary(&rotary);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t i = 0; i < width / 2; i++) {
      const double x = number(heads[r * width + i]), y = number(heads[r * width + width / 2 + i]);
      const int64_t angle = positions[r] * width / 2 + i;
      check("rotary", number(turned[r * width + i]), x * cosines[angle] - y * sines[angle], 2 * ROUNDING<T>);
    }
}

// A row of one token and one of a chunk of five, over blocks in any order.
template <class T>
void check_attention() {
  const int64_t size = 32, heads = 4, kv_heads = 2, dim = 48, num_blocks = 8;
  const std::vector<int32_t> tables{5, 2, 7, 0, 6, 1}, starts{0, 1, 6}, lengths{70, 45};
  const int64_t stride = 3;
  Random random;
  std::vector<T> keys(num_blocks * kv_heads * dim * size), values(keys.size());
  const Cache cache{keys.data(), values.data(), (int32_t)kv_heads, (int32_t)dim, (int32_t)dim,
                    (int32_t)size, CODE<T>};
  std::vector<std::vector<T>> k, v;
  for (int64_t row = 0; row < 2; row++) {
    k.push_back(random.many<T>(lengths[row] * kv_heads * dim, 2.f));
    v.push_back(random.many<T>(lengths[row] * kv_heads * dim));
    std::vector<int64_t> slots;
    for (int64_t at = 0; at < lengths[row]; at++)
      slots.push_back(tables[row * stride + at / size] * size + at % size);
    const Store store{cache, k[row].data(), v[row].data(), kv_heads * dim, kv_heads * dim, slots.data(),
                      lengths[row], THREADS};
    tokenloom_store(&store);
  }
  const auto queries = random.many<T>(6 * heads * dim);
  std::vector<T> result(queries.size());
  Attention args{};
  args.cache = cache;
  args.queries = queries.data(), args.result = result.data();
  args.query_stride = args.result_stride = heads * dim;
  args.tables = tables.data(), args.table_stride = stride;
  args.starts = starts.data(), args.lengths = lengths.data();
  args.rows = 2, args.num_heads = heads, args.scale = 0.2f, args.threads = THREADS;
  tokenloom_attention(&args);
  for (int64_t row = 0; row < 2; row++)
    for (int64_t token = starts[row]; token < starts[row + 1]; token++)
      for (int64_t head = 0; head < heads; head++) {
        const int64_t seen = lengths[row] - (starts[row + 1] - token) + 1, of = head / (heads / kv_heads);
        std::vector<double> sums(dim);
        double total = 0;
        for (int64_t key = 0; key < seen; key++) {
          const int64_t at = (key * kv_heads + of) * dim;
          double score = 0;
          for (int64_t d = 0; d < dim; d++)
            score += number(queries[(token * heads + head) * dim + d]) * number(k[row][at + d]);
          const double weight = std::exp(score * 0.2);
          total += weight;
          for (int64_t d = 0; d < dim; d++) sums[d] += weight * number(v[row][at + d]);
        }
        for (int64_t d = 0; d < dim; d++)
          check("attention", number(result[(token * heads + head) * dim + d]), sums[d] / total,
                5 * ROUNDING<T>);
      }
}

void check_logits() {
  const int64_t count = 700;
  Random random;
  const auto logits = random.many<float>(count, 8.f);
  const float *const rows[2] = {logits.data(), logits.data()};
  const uint32_t *const allowed[2] = {nullptr, nullptr};
  const float temperatures[2] = {0.f, 1.f}, min_ps[2] = {}, top_ps[2] = {1.f, 1.f};
  const int32_t top_ks[2] = {};
  const double uniforms[2] = {0.5, 0.5};
  int32_t ids[2];
  const Draw draw{rows, allowed, temperatures, min_ps, top_ps, top_ks, uniforms, ids, count, 2, THREADS};
  tokenloom_draw(&draw);
  check("best", ids[0], std::max_element(logits.begin(), logits.end()) - logits.begin(), 0);
  double total = 0, below = 0;
  for (const float x : logits) total += std::exp((double)x);
  int32_t id = 0;
  while ((below += std::exp((double)logits[id])) <= 0.5 * total) id++;
  check("drawn", ids[1], id, 0);
  float sums[2];
  const LogSumExp args{rows, sums, count, 2, THREADS};
  tokenloom_log_sum_exp(&args);
  check("log_sum_exp", sums[1], std::log(total), 1e-6);
}

template <class T>
void check_storage() {
  check_gemm<T>();
  check_int8_gemm<T>();
  check_rows<T>();
  check_attention<T>();
}

}  // namespace

int main() {
  check_storage<float>();
  check_storage<BFloat16>();
  check_storage<Float16>();
  check_logits();
  std::puts(is_right ? "all equal" : "not equal");
  return is_right ? 0 : 1;
}
