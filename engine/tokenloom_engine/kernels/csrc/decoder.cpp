// The decoder layers of the Llama family, one after the other: a forward is one call, so that
// nobody waits for Python between operations, nor holds its lock.
#include <numeric>
#include <vector>

#include "attention.h"
#include "cache.h"
#include "parallel.h"
#include "row.h"

namespace tokenloom {
namespace {

// One thread's way through a forward. All threads go the same way, and share the loops in it.
class Pass {
  const Decoder &decoder;
  Forward step;
  std::vector<int32_t> wanted_starts;  // what step.starts is, once only wanted tokens are left
  std::vector<Tile> tiles;             // of attention; empty until it is known

 public:
  Pass(const Decoder &decoder, const Forward &step) : decoder(decoder), step(step) {}

  void compute() {
    for (int32_t i = 0; i < decoder.num_layers; i++) {
      const DecoderLayer &layer = decoder.layers[i];
      norm(layer.input_norm, i == 0 ? nullptr : step.delta);
      linear(layer.query_key_value, step.normed, step.wide);
      place(layer);
      if (i + 1 == decoder.num_layers) keep_wanted(layer.query_key_value.num_outputs);
      attend(layer.attention, layer.query_key_value.num_outputs, layer.output.num_inputs);
      linear(layer.output, step.narrow, step.delta);
      norm(layer.middle_norm, step.delta);
      linear(layer.gate_up, step.normed, step.wide);
      const SiluMultiply gate{step.wide,  step.narrow,     step.tokens, layer.down.num_inputs,
                              decoder.storage, decoder.threads};
      tokenloom_silu_multiply(&gate);
      linear(layer.down, step.narrow, step.delta);
    }
    norm(decoder.norm, step.delta);
  }

 private:
  int64_t size() const { return decoder.storage == 0 ? 4 : 2; }

  static void *at(void *start, int64_t bytes) { return (char *)start + bytes; }

  void norm(const void *weight, const void *delta) const {
    const RmsNorm args{step.hidden,     delta,           weight,          step.normed, step.tokens,
                       decoder.width, decoder.epsilon, decoder.storage, decoder.threads};
    tokenloom_rms_norm(&args);
  }

  void linear(const Linear &linear, const void *inputs, void *result) const {
    if (linear.scales == nullptr) {
      const Gemm args{inputs,      linear.weight,     linear.bias,        result,
                      step.tokens, linear.num_inputs, linear.num_outputs, decoder.storage,
                      0,           decoder.threads,   decoder.tile_rows};
      return tokenloom_gemm(&args);
    }
    const Int8Gemm args{inputs,
                        (const int8_t *)linear.weight,
                        linear.scales,
                        linear.shifts,
                        linear.bias,
                        result,
                        step.quantized,
                        step.row_scales,
                        step.tokens,
                        linear.num_inputs,
                        linear.num_outputs,
                        linear.group,
                        decoder.storage,
                        0,
                        decoder.threads,
                        decoder.int8_tile_rows};
    tokenloom_int8_gemm(&args);
  }

  // Rotates queries and keys, and puts keys and values into the cache.
  void place(const DecoderLayer &layer) const {
    with_storage(decoder.storage, [&](auto t) { place_as<decltype(t)>(layer); });
  }

  template <class T>
  void place_as(const DecoderLayer &layer) const {
    const Cache &cache = layer.attention.cache;
    const int32_t num_heads = layer.attention.num_heads, dim = cache.key_dim;
    const int64_t stride = layer.query_key_value.num_outputs;
    const auto rotary = [&](T *heads, int32_t count, const void *norm) {
      return Rotary{heads,       stride, norm,            step.cosines,    step.sines, step.positions,
                    step.tokens, count,  dim,             decoder.epsilon, decoder.storage,
                    decoder.threads};
    };
    T *keys = (T *)step.wide + num_heads * dim, *values = keys + cache.num_heads * dim;
    const Rotary queries = rotary((T *)step.wide, num_heads, layer.query_norm);
    const Rotary rotated_keys = rotary(keys, cache.num_heads, layer.key_norm);
    const Blocks<T> blocks(cache);
    parallel_ranges(step.tokens, 2, decoder.threads, [&](int64_t first, int64_t last) {
      for (int64_t token = first; token < last; token++) {
        rotate_row<T>(queries, token);
        rotate_row<T>(rotated_keys, token);
        blocks.store(step.slots[token], keys + token * stride, values + token * stride);
      }
    });
  }

  // Of the last layer's output only some tokens are wanted: their queries and residuals move
  // together, and the others are done.
  void keep_wanted(int64_t stride) {
    if (step.num_wanted == step.tokens) return;
    const int64_t query = stride * size(), hidden = decoder.width * size();
    parallel_for(1, decoder.threads, [&](int64_t) {
      for (int64_t i = 0; i < step.num_wanted; i++) {
        const int64_t token = step.wanted[i];
        std::memmove(at(step.wide, i * query), at(step.wide, token * query), query);
        std::memmove(at(step.hidden, i * hidden), at(step.hidden, token * hidden), hidden);
      }
    });
    wanted_starts.assign(step.rows + 1, 0);
    for (int64_t i = 0, row = 0; i < step.num_wanted; i++) {
      while (step.wanted[i] >= step.starts[row + 1]) row++;
      wanted_starts[row + 1]++;
    }
    std::partial_sum(wanted_starts.begin(), wanted_starts.end(), wanted_starts.begin());
    step.starts = wanted_starts.data();
    step.tokens = step.num_wanted;
    tiles.clear();
  }

  void attend(Attention args, int64_t query_stride, int64_t result_stride) {
    args.queries = step.wide;
    args.result = step.narrow;
    args.query_stride = query_stride;
    args.result_stride = result_stride;
    args.tables = step.tables;
    args.table_stride = step.table_stride;
    args.starts = step.starts;
    args.lengths = step.lengths;
    args.rows = step.rows;
    args.threads = decoder.threads;
    if (tiles.empty()) tiles = attention_tiles(args);
    tokenloom::attend(args, tiles);
  }
};

}  // namespace
}  // namespace tokenloom

void tokenloom_forward(const Decoder *decoder, const Forward *step) {
  tokenloom::run_together(decoder->threads,
                          [&] { tokenloom::Pass(*decoder, *step).compute(); });
}
