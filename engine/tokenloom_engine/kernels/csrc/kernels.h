// What the library offers: plain functions over plain structs. Nothing is allocated for the
// caller and nothing is kept. All pointers are to contiguous rows unless a stride is given;
// strides are in elements. `storage` is 0 float, 1 bfloat16, 2 float16; `threads` is the most
// that a function uses.
//
// kernels/structs.py mirrors each struct, kernels/library.py each function.
#pragma once

#include <cstdint>

extern "C" {

// outputs[rows, outputs] = inputs[rows, inputs] * weight + bias, see gemm.cpp for the weight's
// layout. The result has the inputs' storage, or is float.
struct Gemm {
  const void *inputs;
  const void *weight;
  const void *bias;  // [outputs] or null
  void *result;
  int64_t rows, num_inputs, num_outputs;
  int32_t storage, is_float_result, threads;
  int32_t tile_rows;  // with so many rows or more in bfloat16 the product is by AMX; 0: never
};
void tokenloom_gemm(const Gemm *);

// The same with a weight of bytes, see int8_gemm.cpp.
struct Int8Gemm {
  const void *inputs;
  const int8_t *weight;
  const float *scales;    // [outputs, rounded up to 32]
  const int32_t *shifts;  // [num_inputs / group, outputs rounded up to 32]
  const void *bias;       // [outputs] or null
  void *result;
  void *quantized;        // workspace [rows, num_inputs] of two bytes at most
  float *row_scales;      // workspace [rows, num_inputs / group]
  int64_t rows, num_inputs, num_outputs;
  int64_t group;          // inputs of a row that share a scale: a multiple of 16, divides num_inputs
  int32_t storage, is_float_result, threads;
  int32_t tile_rows;      // with so many rows or more the product is by AMX; 0: never
};
void tokenloom_int8_gemm(const Int8Gemm *);

// Asks the system for the tiles of AMX, for the whole process. `tile_rows` must be 0 unless this
// returns 1.
int32_t tokenloom_permit_tiles();

// Compares products by tiles with those by vectors: of bytes to the bit, of bfloat16 nearly. Returns 0 if
// they are right, 1 if one differs, 2 without permission. May crash: call it in a process of its own.
int32_t tokenloom_check_tiles();

// residual += delta (where there is one), then result = its RMS norm (Zhang, Sennrich 2019).
struct RmsNorm {
  void *residual;     // [rows, width], changed only if there is a delta
  const void *delta;  // [rows, width] or null
  const void *weight; // [width]
  void *result;       // [rows, width]
  int64_t rows, width;
  float epsilon;
  int32_t storage, threads;
};
void tokenloom_rms_norm(const RmsNorm *);

// result[rows, width] = silu(gate) * up, where gate_up is [rows, gate then up].
struct SiluMultiply {
  const void *gate_up;
  void *result;
  int64_t rows, width;
  int32_t storage, threads;
};
void tokenloom_silu_multiply(const SiluMultiply *);

// Rotates heads in place (RoFormer, Su et al. 2021; halves, as Llama has it), after an RMS norm of
// each head where there is a weight.
struct Rotary {
  void *heads;          // [rows, stride]: num_heads of dim each at the start of every row
  int64_t stride;
  const void *norm;     // [dim] or null
  const float *cosines; // [positions, dim / 2]
  const float *sines;
  const int64_t *positions;  // [rows]
  int64_t rows;
  int32_t num_heads, dim;
  float epsilon;
  int32_t storage, threads;
};
void tokenloom_rotary(const Rotary *);

// One layer's part of the paged KV cache. The layout stands in cache.h.
struct Cache {
  void *keys;
  void *values;
  int32_t num_heads, key_dim, value_dim, block_size;
  int32_t storage;
};

// Puts each token's key and value into its slot (block * block_size + offset).
struct Store {
  Cache cache;
  const void *keys;    // [tokens, key_stride]
  const void *values;  // [tokens, value_stride]
  int64_t key_stride, value_stride;
  const int64_t *slots;
  int64_t tokens;
  int32_t threads;
};
void tokenloom_store(const Store *);

// Causal attention of packed rows over their blocks.
struct Attention {
  Cache cache;
  const void *queries;  // [tokens, query_stride], heads of key_dim
  void *result;         // [tokens, result_stride], heads of value_dim
  int64_t query_stride, result_stride;
  const int32_t *tables;  // [rows, table_stride] blocks
  int64_t table_stride;
  const int32_t *starts;   // [rows + 1]: where each row's tokens begin
  const int32_t *lengths;  // [rows]: keys that the row's last token sees
  int32_t rows, num_heads;
  float scale;
  float softcap;        // 0: none
  int32_t window;       // 0: none; else a token sees so many keys at most
  const float *sinks;   // [num_heads] or null
  int32_t threads;
};
void tokenloom_attention(const Attention *);

// A linear layer: of bytes if it has scales, see Int8Gemm, else as in Gemm.
struct Linear {
  const void *weight;
  const void *bias;
  const float *scales;
  const int32_t *shifts;
  int64_t num_inputs, num_outputs, group;
};

// A decoder layer of the Llama family, see decoder.cpp.
struct DecoderLayer {
  const void *input_norm;
  Linear query_key_value;   // their outputs one after the other
  const void *query_norm;   // [dim] or null
  const void *key_norm;     // [dim] or null
  Linear output;
  const void *middle_norm;
  Linear gate_up;
  Linear down;
  Attention attention;      // with cache, dims, scale and window; the rest is filled in
};

struct Decoder {
  const DecoderLayer *layers;
  int32_t num_layers;
  float epsilon;
  int32_t storage, threads;
  int64_t width;
  const void *norm;  // of the last layer's output
  int32_t tile_rows, int8_tile_rows;  // as in Gemm and Int8Gemm
};

// One forward. All spaces are the caller's.
struct Forward {
  void *hidden;  // [tokens, width]: the embeddings
  const float *cosines, *sines;  // as in Rotary
  const int64_t *positions;
  const int64_t *slots;
  const int32_t *tables, *starts, *lengths;  // as in Attention
  int64_t table_stride;
  const int64_t *wanted;  // [num_wanted] of the tokens, in their order: some of each row's last
  int64_t tokens, num_wanted;
  int32_t rows;
  void *normed;        // [tokens, width], and in the end [num_wanted, width]: the normed output
  void *delta;         // [tokens, width]
  void *wide;          // [tokens, most outputs of query_key_value and gate_up]
  void *narrow;        // [tokens, most inputs of output and down]
  void *quantized;     // [tokens, most inputs] of two bytes at most, for layers of bytes
  float *row_scales;   // [tokens, most groups of inputs], for layers of bytes
};
void tokenloom_forward(const Decoder *, const Forward *);

// A token of each row: temperature (0: the best), then min-p, top-k and top-p, then a draw.
struct Draw {
  const float *const *logits;      // [rows] of [num_tokens]
  const uint32_t *const *allowed;  // [rows] of [num_tokens / 32] bits, or null: all
  const float *temperatures;       // [rows], as all below
  const float *min_ps;             // 0: off
  const float *top_ps;             // 1: off
  const int32_t *top_ks;           // 0: off
  const double *uniforms;          // in [0, 1)
  int32_t *ids;                    // -1 where no token can be drawn
  int64_t num_tokens;
  int32_t rows, threads;
};
void tokenloom_draw(const Draw *);

// The logarithm of the sum of each row's exponentials.
struct LogSumExp {
  const float *const *logits;  // [rows] of [num_tokens]
  float *results;              // [rows]
  int64_t num_tokens;
  int32_t rows, threads;
};
void tokenloom_log_sum_exp(const LogSumExp *);
}
