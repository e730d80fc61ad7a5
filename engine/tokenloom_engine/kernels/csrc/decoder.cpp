// The decoder layers of the Llama family, one after the other: a forward is one call, so that
// nobody waits for Python between operations, nor holds its lock.
#include "kernels.h"
#include "storage.h"

namespace tokenloom {
namespace {

struct Pass {
  const Decoder &decoder;
  const Forward &step;

  void layer(const DecoderLayer &layer, bool is_first) const {
    const Cache &cache = layer.attention.cache;
    const int32_t heads = layer.attention.num_heads, dim = cache.key_dim;
    const int64_t stride = layer.query_key_value.num_outputs;
    norm(layer.input_norm, is_first ? nullptr : step.delta);
    linear(layer.query_key_value, step.normed, step.wide);
    rotate(step.wide, stride, heads, dim, layer.query_norm);
    void *keys = at(step.wide, heads * dim), *values = at(keys, cache.num_heads * dim);
    rotate(keys, stride, cache.num_heads, dim, layer.key_norm);
    const Store store{cache,  keys,        values,          stride,
                      stride, step.slots,  step.tokens,     decoder.threads};
    tokenloom_store(&store);
    attend(layer.attention, stride, layer.output.num_inputs);
    linear(layer.output, step.narrow, step.delta);
    norm(layer.middle_norm, step.delta);
    linear(layer.gate_up, step.normed, step.wide);
    const SiluMultiply gate{step.wide,  step.narrow,     step.tokens, layer.down.num_inputs,
                            decoder.storage, decoder.threads};
    tokenloom_silu_multiply(&gate);
    linear(layer.down, step.narrow, step.delta);
  }

  // hidden += the last layer's contribution.
  template <class T>
  void finish() const {
    using S = Storage<T>;
    T *hidden = (T *)step.hidden;
    const T *delta = (const T *)step.delta;
    for (int64_t i = 0; i < step.tokens * decoder.width; i += LANES)
      S::store(hidden + i, S::load(hidden + i) + S::load(delta + i));
  }

 private:
  void *at(void *start, int64_t elements) const {
    return (char *)start + elements * (decoder.storage == 0 ? 4 : 2);
  }

  void norm(const void *weight, const void *delta) const {
    const RmsNorm args{step.hidden,     delta,           weight,          step.normed, step.tokens,
                       decoder.width, decoder.epsilon, decoder.storage, decoder.threads};
    tokenloom_rms_norm(&args);
  }

  void linear(const Linear &linear, const void *inputs, void *result) const {
    if (linear.scales == nullptr) {
      const Gemm args{inputs,      linear.weight,     linear.bias,        result,
                      step.tokens, linear.num_inputs, linear.num_outputs, decoder.storage,
                      0,           decoder.threads};
      return tokenloom_gemm(&args);
    }
    const Int8Gemm args{inputs,
                        (const int8_t *)linear.weight,
                        linear.scales,
                        linear.sums,
                        linear.bias,
                        result,
                        step.quantized,
                        step.row_scales,
                        step.tokens,
                        linear.num_inputs,
                        linear.num_outputs,
                        decoder.storage,
                        decoder.threads};
    tokenloom_int8_gemm(&args);
  }

  void rotate(void *heads, int64_t stride, int32_t count, int32_t dim, const void *norm) const {
    const Rotary args{heads, stride, norm,            step.cosines,    step.sines,      step.tokens,
                      count, dim,    decoder.epsilon, decoder.storage, decoder.threads};
    tokenloom_rotary(&args);
  }

  void attend(Attention args, int64_t query_stride, int64_t result_stride) const {
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
    tokenloom_attention(&args);
  }
};

}  // namespace
}  // namespace tokenloom

void tokenloom_forward(const Decoder *decoder, const Forward *step) {
  const tokenloom::Pass pass{*decoder, *step};
  for (int32_t i = 0; i < decoder->num_layers; i++) pass.layer(decoder->layers[i], i == 0);
  tokenloom::with_storage(decoder->storage, [&](auto t) { pass.finish<decltype(t)>(); });
}
