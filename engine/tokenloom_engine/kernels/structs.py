"""The structs of csrc/kernels.h, which has their meaning.

Tensors must be contiguous unless a stride is taken from them, and live as long as a struct that
points to them.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p


class Gemm(ctypes.Structure):
    _fields_ = [
        ("inputs", c_void_p),
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("result", c_void_p),
        ("rows", c_int64),
        ("num_inputs", c_int64),
        ("num_outputs", c_int64),
        ("storage", c_int32),
        ("is_float_result", c_int32),
        ("threads", c_int32),
        ("tile_rows", c_int32),
    ]


class Int8Gemm(ctypes.Structure):
    _fields_ = [
        ("inputs", c_void_p),
        ("weight", c_void_p),
        ("scales", c_void_p),
        ("shifts", c_void_p),
        ("bias", c_void_p),
        ("result", c_void_p),
        ("quantized", c_void_p),
        ("row_scales", c_void_p),
        ("rows", c_int64),
        ("num_inputs", c_int64),
        ("num_outputs", c_int64),
        ("group", c_int64),
        ("storage", c_int32),
        ("is_float_result", c_int32),
        ("threads", c_int32),
        ("tile_rows", c_int32),
    ]


class RmsNorm(ctypes.Structure):
    _fields_ = [
        ("residual", c_void_p),
        ("delta", c_void_p),
        ("weight", c_void_p),
        ("result", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("epsilon", c_float),
        ("storage", c_int32),
        ("threads", c_int32),
    ]


class SiluMultiply(ctypes.Structure):
    _fields_ = [
        ("gate_up", c_void_p),
        ("result", c_void_p),
        ("rows", c_int64),
        ("width", c_int64),
        ("storage", c_int32),
        ("threads", c_int32),
    ]


class Rotary(ctypes.Structure):
    _fields_ = [
        ("heads", c_void_p),
        ("stride", c_int64),
        ("norm", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("positions", c_void_p),
        ("rows", c_int64),
        ("num_heads", c_int32),
        ("dim", c_int32),
        ("epsilon", c_float),
        ("storage", c_int32),
        ("threads", c_int32),
    ]


class Cache(ctypes.Structure):
    _fields_ = [
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_heads", c_int32),
        ("key_dim", c_int32),
        ("value_dim", c_int32),
        ("block_size", c_int32),
        ("storage", c_int32),
    ]


class Store(ctypes.Structure):
    _fields_ = [
        ("cache", Cache),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("key_stride", c_int64),
        ("value_stride", c_int64),
        ("slots", c_void_p),
        ("tokens", c_int64),
        ("threads", c_int32),
    ]


class Attention(ctypes.Structure):
    _fields_ = [
        ("cache", Cache),
        ("queries", c_void_p),
        ("result", c_void_p),
        ("query_stride", c_int64),
        ("result_stride", c_int64),
        ("tables", c_void_p),
        ("table_stride", c_int64),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("rows", c_int32),
        ("num_heads", c_int32),
        ("scale", c_float),
        ("softcap", c_float),
        ("window", c_int32),
        ("sinks", c_void_p),
        ("threads", c_int32),
    ]


class Linear(ctypes.Structure):
    _fields_ = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("scales", c_void_p),
        ("shifts", c_void_p),
        ("num_inputs", c_int64),
        ("num_outputs", c_int64),
        ("group", c_int64),
    ]


class DecoderLayer(ctypes.Structure):
    _fields_ = [
        ("input_norm", c_void_p),
        ("query_key_value", Linear),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("output", Linear),
        ("middle_norm", c_void_p),
        ("gate_up", Linear),
        ("down", Linear),
        ("attention", Attention),
    ]


class Decoder(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(DecoderLayer)),
        ("num_layers", c_int32),
        ("epsilon", c_float),
        ("storage", c_int32),
        ("threads", c_int32),
        ("width", c_int64),
        ("norm", c_void_p),
        ("tile_rows", c_int32),
        ("int8_tile_rows", c_int32),
    ]


class Forward(ctypes.Structure):
    _fields_ = [
        ("hidden", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("tables", c_void_p),
        ("starts", c_void_p),
        ("lengths", c_void_p),
        ("table_stride", c_int64),
        ("wanted", c_void_p),
        ("tokens", c_int64),
        ("num_wanted", c_int64),
        ("rows", c_int32),
        ("normed", c_void_p),
        ("delta", c_void_p),
        ("wide", c_void_p),
        ("narrow", c_void_p),
        ("quantized", c_void_p),
        ("row_scales", c_void_p),
    ]


class Draw(ctypes.Structure):
    _fields_ = [
        ("logits", c_void_p),
        ("allowed", c_void_p),
        ("temperatures", c_void_p),
        ("min_ps", c_void_p),
        ("top_ps", c_void_p),
        ("top_ks", c_void_p),
        ("uniforms", c_void_p),
        ("ids", c_void_p),
        ("num_tokens", c_int64),
        ("rows", c_int32),
        ("threads", c_int32),
    ]


class LogSumExp(ctypes.Structure):
    _fields_ = [
        ("logits", c_void_p),
        ("results", c_void_p),
        ("num_tokens", c_int64),
        ("rows", c_int32),
        ("threads", c_int32),
    ]
