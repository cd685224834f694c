#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A GGUF file of a tiny model, as llama.cpp's convert_hf_to_gguf.py would write it.

    tiny_gguf.py [options] FOLDER OUT.gguf      FOLDER: config.json, model.safetensors in bfloat16

    --type bf16|f32       type of matrices (vectors are always f32)
    --experts plain|mxfp4|mxfp4-plain
                          gpt_oss only: experts of --type; as MXFP4 blocks; or rounded to MXFP4 and
                          then stored with --type: exactly the same numbers as mxfp4
    --strict              only the keys that the converter writes. Without it the file also has keys
                          that the converter omits and the golden depends on (see `extras`)
    --llama-cpp           also tokenizer.ggml.model "no_vocab", which llama.cpp requires

Needs numpy and gguf. docs/gguf-families.md gives the source of each rule; the file has no
vocabulary, only ARCH.vocab_size.
"""

import argparse
import json
import logging
import math
import re
import struct
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType, RopeScalingType, quants

ARCHITECTURES = {  # model_type: general.architecture
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "lfm2": "lfm2",
    "llama": "llama",
    "mistral": "llama",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "phi3": "phi3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_5_moe_text": "qwen35moe",
    "qwen3_5_text": "qwen35",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "smollm3": "smollm3",
}
DELTA_NETS = ("qwen3next", "qwen35", "qwen35moe")

# ---- names -------------------------------------------------------------------------------------

MODEL_PARTS = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "model.embedding_norm.weight": "token_embd_norm.weight",  # lfm2's last norm, despite the names
    "model.embed_tokens_per_layer.weight": "per_layer_token_embd.weight",
    "model.per_layer_model_projection.weight": "per_layer_model_proj.weight",
    "model.per_layer_projection_norm.weight": "per_layer_proj_norm.weight",
}
# The part of a name between "model.layers.N." and ".weight" or ".bias".
LAYER_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up",  # phi3: gate's rows first
    # experts
    "mlp.gate": "ffn_gate_inp",
    "mlp.router": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    # gated delta nets
    "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_ba": "ssm_ba",
    "linear_attn.in_proj_b": "ssm_beta",
    "linear_attn.in_proj_a": "ssm_alpha",
    "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm",
    "linear_attn.out_proj": "ssm_out",
    # lfm2
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
    "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    # gemma
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
}
# Names that end in neither ".weight" nor ".bias".
BARE_PARTS = {
    "self_attn.sinks": "attn_sinks.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "layer_scalar": "layer_output_scale.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
    "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale",
}
# Architectures whose files say post_attention_norm: a norm before the residual is added, or just
# their name for the norm of the MLP.
POST_ATTENTION_NORM = ("gemma2", "gemma3", "gemma4", "olmo2", "gpt-oss", *DELTA_NETS)


def gguf_name(arch, name):
    if name in MODEL_PARTS:
        return MODEL_PARTS[name]
    layer, part = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", name).groups()
    if part in BARE_PARTS:
        return f"blk.{layer}.{BARE_PARTS[part]}"
    part, kind = part.rsplit(".", 1)
    if part == "post_attention_layernorm" and arch in POST_ATTENTION_NORM:
        return f"blk.{layer}.post_attention_norm.{kind}"
    return f"blk.{layer}.{LAYER_PARTS[part]}.{kind}"


# ---- values ------------------------------------------------------------------------------------


def adjacent_pairs(x, heads):
    """Rows of q or k from halves (i, i + dim/2) to neighbours (2i, 2i + 1), head by head."""
    return x.reshape(heads, 2, -1, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def tiled_heads(x, groups, dim, axis=0):
    """Value heads along `axis`, from key head by key head to round robin: head g*r + i of r heads
    for each of `groups` key heads goes to i*groups + g."""
    x = np.moveaxis(x, axis, 0)
    y = x.reshape(groups, -1, dim, *x.shape[1:]).swapaxes(0, 1).reshape(x.shape)
    return np.moveaxis(y, 0, axis)


def split_qkvz(c, x):
    """qwen3_next: rows [q k v z] of each key head in turn, to all q, all k, all v; and all z."""
    groups, dk, dv = (
        c["linear_num_key_heads"],
        c["linear_key_head_dim"],
        c["linear_value_head_dim"] * c["linear_num_value_heads"] // c["linear_num_key_heads"],
    )
    parts = np.split(x.reshape(groups, -1, x.shape[-1]), [dk, 2 * dk, 2 * dk + dv], axis=1)
    q, k, v, z = (p.reshape(-1, x.shape[-1]) for p in parts)
    return np.concatenate([q, k, v]), z


def tile_values(c, part, x):
    """qwen35 and qwen35moe: tensors of value heads, reordered by tiled_heads."""
    groups, dim = c["linear_num_key_heads"], c["linear_value_head_dim"]
    qk = 2 * groups * c["linear_key_head_dim"]
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        return np.concatenate([x[:qk], tiled_heads(x[qk:], groups, dim)])
    if part == "in_proj_z.weight":
        return tiled_heads(x, groups, dim)
    if part == "out_proj.weight":
        return tiled_heads(x, groups, dim, axis=1)
    if part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
        return tiled_heads(x, groups, 1)
    return x  # norm.weight, which all heads share


def delta_net(arch, c, layer, part, x):
    """The file's tensors for one tensor "model.layers.LAYER.linear_attn.PART"."""
    name = gguf_name(arch, f"model.layers.{layer}.linear_attn.{part}") if "qkvz" not in part else ""
    if part == "conv1d.weight":
        x = x[:, 0]
    if arch != "qwen3next":
        x = tile_values(c, part, x)
    if part == "A_log":
        x = -np.exp(x.astype(np.float64))
    if part != "in_proj_qkvz.weight":
        return [(name, x)]
    qkv, z = split_qkvz(c, x)
    return [(f"blk.{layer}.attn_qkv.weight", qkv), (f"blk.{layer}.attn_gate.weight", z)]


def gpt_oss_experts(layer, part, x):
    """[expert, in, out] with gate and up in alternate columns, to [expert, out, in] each."""
    prefix, kind = f"blk.{layer}.ffn_", "bias" if part.endswith("_bias") else "weight"
    if kind == "weight":
        x = x.swapaxes(1, 2)
    if part.startswith("down_proj"):
        return [(f"{prefix}down_exps.{kind}", x)]
    return [(f"{prefix}gate_exps.{kind}", x[:, ::2]), (f"{prefix}up_exps.{kind}", x[:, 1::2])]


def plus_one(arch, name):
    """Whether the file's norm is 1 + Hugging Face's."""
    if arch in ("gemma2", "gemma3"):
        return name.endswith("norm.weight")
    return (
        arch in DELTA_NETS
        and name.endswith("norm.weight")
        and not name.endswith("linear_attn.norm.weight")
    )


def convert(arch, c, name, x):
    """[(name, values)] in the file for one tensor of Hugging Face's."""
    if match := re.fullmatch(r"model\.layers\.(\d+)\.linear_attn\.(.+)", name):
        return delta_net(arch, c, *match.groups(), x)
    if arch == "gpt-oss" and (match := re.fullmatch(r".*layers\.(\d+)\.mlp\.experts\.(.+)", name)):
        return gpt_oss_experts(*match.groups(), x)
    if plus_one(arch, name):
        x = x + np.float32(1)
    if arch in ("llama", "granite", "smollm3"):
        if name.endswith(("q_proj.weight", "q_proj.bias")):
            x = adjacent_pairs(x, c["num_attention_heads"])
        if name.endswith(("k_proj.weight", "k_proj.bias")):
            x = adjacent_pairs(x, c["num_key_value_heads"])
    if name.endswith("conv.conv.weight"):
        x = x[:, 0]
    return [(gguf_name(arch, name), x)]


def stack_experts(tensors):
    """Joins the tensors ...mlp.experts.E.gate_proj.weight of all E to one [expert, out, in]."""
    found = {}
    for name in list(tensors):
        if match := re.fullmatch(r"(.*\.mlp\.experts\.)(\d+)\.(.*)", name):
            found.setdefault(match[1] + match[3], {})[int(match[2])] = tensors.pop(name)
    for name, experts in found.items():
        tensors[name] = np.stack([experts[e] for e in range(len(experts))])


def llama3_factors(c, rope):
    """The divisor of each frequency in llama3 scaling."""
    dim = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    ctx, factors = rope["original_max_position_embeddings"], []
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    for freq in 1 / np.float32(rope["rope_theta"]) ** exponents:
        turns = ctx * float(freq) / (2 * math.pi)  # in the original context
        smooth = min(max((turns - low) / (high - low), 0), 1)
        factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return factors


def extra_tensors(arch, c):
    rope = c["rope_parameters"]
    if arch == "llama" and rope.get("rope_type") == "llama3":
        yield "rope_freqs.weight", llama3_factors(c, rope)
    if arch == "phi3" and rope.get("long_factor"):
        yield "rope_factors_long.weight", rope["long_factor"]
        yield "rope_factors_short.weight", rope["short_factor"]
    if arch == "gemma4":  # full layers rotate the first pairs of halves and leave the others
        dim = full_head(c, "head_dim")
        turned = int(dim * rope["full_attention"]["partial_rotary_factor"] / 2)
        yield "rope_freqs.weight", [1.0] * turned + [1e30] * (dim // 2 - turned)


# ---- metadata ----------------------------------------------------------------------------------


def full_head(c, key):
    """gemma4: head_dim or num_key_value_heads of full layers."""
    name = {"head_dim": "global_head_dim", "num_key_value_heads": "num_global_key_value_heads"}[key]
    if c.get(name) is not None:
        return c[name]
    for layer, own in (c.get("per_layer_config") or {}).items():
        if c["layer_types"][int(layer)] == "full_attention" and key in own:
            return own[key]
    return c[key]  # the converter accepts none of these models


def sliding(c):
    return [t == "sliding_attention" for t in c["layer_types"]]


def write_rope(w, c):
    rope = c["rope_parameters"].get("full_attention", c["rope_parameters"])
    if rope.get("rope_type") == "linear":
        w.add_rope_scaling_type(RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        w.add_rope_scaling_type(RopeScalingType.YARN)
        w.add_rope_scaling_factor(rope["factor"])
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name, add in (
            ("extrapolation_factor", w.add_rope_scaling_yarn_ext_factor),
            ("attention_factor", w.add_rope_scaling_yarn_attn_factor),
            ("beta_fast", w.add_rope_scaling_yarn_beta_fast),
            ("beta_slow", w.add_rope_scaling_yarn_beta_slow),
        ):
            if rope.get(name) is not None:
                add(rope[name])
    w.add_rope_freq_base(rope["rope_theta"])
    if local := c["rope_parameters"].get("sliding_attention"):
        w.add_rope_freq_base_swa(local["rope_theta"])


def write_common(w, c):
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c.get("rms_norm_eps", c.get("norm_eps")))
    w.add_vocab_size(c["vocab_size"])
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if experts := c.get("num_local_experts") or c.get("num_experts"):
        w.add_expert_count(experts)
        w.add_expert_used_count(c.get("num_experts_per_tok") or c["top_k_experts"])
    if c.get("moe_intermediate_size"):
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if c.get("shared_expert_intermediate_size"):
        w.add_expert_shared_feed_forward_length(c["shared_expert_intermediate_size"])


def write_llama(w, c):
    heads = c["num_attention_heads"]
    w.add_rope_dimension_count(c.get("head_dim") or c["hidden_size"] // heads)


def write_granite(w, c):
    write_llama(w, c)
    w.add_attention_scale(c["attention_multiplier"])
    w.add_embedding_scale(c["embedding_multiplier"])
    w.add_residual_scale(c["residual_multiplier"])
    w.add_logit_scale(c["logits_scaling"])


def write_gemma2(w, c):
    w.add_attn_logit_softcapping(c["attn_logit_softcapping"])
    w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_sliding_window(c["sliding_window"])


def write_gemma3(w, c):
    if c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(c["final_logit_softcapping"])
    w.add_sliding_window(c["sliding_window"])


def write_gemma4(w, c):
    write_gemma3(w, c)
    window = sliding(c)
    shared = c["num_kv_shared_layers"]
    w.add_shared_kv_layers(shared)
    w.add_embedding_length_per_layer_input(c.get("hidden_size_per_layer_input") or 0)
    w.add_sliding_window_pattern(window)
    dim, own = full_head(c, "head_dim"), c["head_dim"]
    w.add_key_length(dim)
    w.add_value_length(dim)
    w.add_key_length_swa(own)
    w.add_value_length_swa(own)
    w.add_rope_dimension_count(dim)
    w.add_rope_dimension_count_swa(own)
    if c.get("use_double_wide_mlp"):
        n, first = c["intermediate_size"], c["num_hidden_layers"] - shared
        w.add_feed_forward_length([n if i < first else 2 * n for i in range(len(window))])
    heads = full_head(c, "num_key_value_heads")
    if heads != c["num_key_value_heads"]:
        w.add_head_count_kv([c["num_key_value_heads"] if s else heads for s in window])


def write_gpt_oss(w, c):
    w.add_sliding_window(c["sliding_window"])
    w.add_expert_feed_forward_length(c["intermediate_size"])


def write_olmo2(w, c):
    w.add_sliding_window(c["sliding_window"])
    w.add_sliding_window_pattern(sliding(c))


def write_phi3(w, c):
    rope, ctx = c["rope_parameters"], c["max_position_embeddings"]
    w.add_sliding_window(c.get("sliding_window") or 0)
    dims = c["hidden_size"] // c["num_attention_heads"]
    w.add_rope_dimension_count(int(dims * rope.get("partial_rotary_factor", 1)))
    original = rope.get("original_max_position_embeddings", ctx)
    w.add_rope_scaling_orig_ctx_len(original)
    if rope.get("long_factor"):  # rope.scaling.type is not written
        scale = ctx / original
        factor = math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
        w.add_rope_scaling_attn_factors(factor)


def write_lfm2(w, c):
    w.add_shortconv_l_cache(c["conv_L_cache"])
    heads = c["num_key_value_heads"]
    w.add_head_count_kv([0 if t == "conv" else heads for t in c["layer_types"]])
    width, step = c.get("block_ff_dim") or c["intermediate_size"], c["block_multiple_of"]
    if c["block_auto_adjust_ff_dim"]:
        width = int((c["block_ffn_dim_multiplier"] or 1) * int(2 * width / 3))
        width = step * ((width + step - 1) // step)
    w.add_feed_forward_length(width)


def write_delta_net(w, c):
    w.add_ssm_conv_kernel(c["linear_conv_kernel_dim"])
    w.add_ssm_state_size(c["linear_key_head_dim"])
    w.add_ssm_group_count(c["linear_num_key_heads"])
    w.add_ssm_time_step_rank(c["linear_num_value_heads"])
    w.add_ssm_inner_size(c["linear_value_head_dim"] * c["linear_num_value_heads"])
    recurrent = [t == "linear_attention" for t in c["layer_types"]]
    w.add_array(f"{w.arch}.attention.recurrent_layers", recurrent)
    w.add_full_attention_interval(c.get("full_attention_interval", 4))
    factor = c["rope_parameters"].get("partial_rotary_factor", 0.25)
    w.add_rope_dimension_count(int(c["head_dim"] * factor))
    if w.arch != "qwen3next":
        sections = c["rope_parameters"].get("mrope_section", [11, 11, 10])
        w.add_rope_dimension_sections((sections + [0])[:4])


WRITERS = {
    "gemma2": write_gemma2,
    "gemma3": write_gemma3,
    "gemma4": write_gemma4,
    "gpt-oss": write_gpt_oss,
    "granite": write_granite,
    "lfm2": write_lfm2,
    "llama": write_llama,
    "olmo2": write_olmo2,
    "phi3": write_phi3,
    "qwen35": write_delta_net,
    "qwen35moe": write_delta_net,
    "qwen3next": write_delta_net,
    "smollm3": write_llama,
}
PERIODS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2}  # one of every n layers has no window


def extras(w, c):
    """Writes keys for facts that readers cannot know from the converter's keys.

    Mistral's window: llama.cpp has none for "llama" and ignores the key. Windows if layer_types
    differs from the architecture's usual period: llama.cpp reads the key, no converter writes it.
    gemma4 without a soft cap: to llama.cpp a missing key means 30, and 0 means none.
    """
    if w.arch == "gemma4" and not c.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(0)
    if c["model_type"] == "mistral" and c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    period = PERIODS.get(w.arch)
    if period and sliding(c) != [(i + 1) % period != 0 for i in range(c["num_hidden_layers"])]:
        w.add_sliding_window_pattern(sliding(c))


def write_metadata(w, c, file_type):
    w.add_type("model")
    w.add_name(c["model_type"])
    w.add_file_type(file_type)
    w.add_quantization_version(2)
    write_common(w, c)
    if w.arch == "gemma2":
        pass  # the converter writes no base; readers assume 10000
    else:
        write_rope(w, c)
    WRITERS.get(w.arch, lambda w, c: None)(w, c)


# ---- the file ----------------------------------------------------------------------------------


def load(path):
    """Tensors of a safetensors file as float32."""
    blob = Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", blob)
    tensors = {}
    for name, info in json.loads(blob[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        first, last = (8 + size + offset for offset in info["data_offsets"])
        if info["dtype"] == "BF16":
            x = (np.frombuffer(blob[first:last], "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            x = np.frombuffer(blob[first:last], {"F32": "<f4", "F16": "<f2"}[info["dtype"]])
        tensors[name] = x.reshape(info["shape"]).astype(np.float32)
    return tensors


def always_f32(name, x):
    return (
        x.ndim < 2
        or not name.endswith(".weight")
        or name.endswith("_norm.weight")
        or re.search(r"\.(ffn_gate_inp|ffn_gate_inp_shexp|ssm_conv1d|shortconv\.conv)\.", name)
    )


def store(w, name, x, kind, experts):
    x = np.ascontiguousarray(x, np.float32)
    mxfp4 = GGMLQuantizationType.MXFP4
    if experts != "plain" and name.endswith("_exps.weight"):
        blocks = quants.quantize(x, mxfp4)
        if experts == "mxfp4":
            w.add_tensor(name, blocks, raw_dtype=mxfp4)
            return
        x = quants.dequantize(blocks, mxfp4)
    if kind == "f32" or always_f32(name, x):
        w.add_tensor(name, x)
    else:
        bf16 = GGMLQuantizationType.BF16
        w.add_tensor(name, quants.quantize(x, bf16), raw_dtype=bf16)


def write(folder, out, kind="bf16", experts="plain", strict=False, llama_cpp=False, tokens=None):
    """tokens: [(text, TokenType)] of a vocabulary of bytes, whose merges never apply."""
    c = json.loads((Path(folder) / "config.json").read_text())
    arch = ARCHITECTURES[c["model_type"]]
    if experts != "plain" and arch != "gpt-oss":
        raise SystemExit("tiny_gguf: --experts is for gpt_oss only")
    w = GGUFWriter(out, arch)
    file_type = LlamaFileType.ALL_F32 if kind == "f32" else LlamaFileType.MOSTLY_BF16
    if experts == "mxfp4":
        file_type = LlamaFileType.MOSTLY_MXFP4_MOE
    write_metadata(w, c, file_type)
    if not strict:
        extras(w, c)
    if llama_cpp:
        w.add_tokenizer_model("no_vocab")
    if tokens:
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("gpt-2")
        w.add_token_list([text for text, _ in tokens])
        w.add_token_types([kind for _, kind in tokens])
        w.add_token_merges(["\u0100 \u0101"])  # llama.cpp wants one: of the bytes 0 and 1
        w.add_eos_token_id(c["eos_token_id"])
        w.add_add_bos_token(False)
    tensors = load(Path(folder) / "model.safetensors")
    stack_experts(tensors)
    for name, values in extra_tensors(arch, c):
        w.add_tensor(name, np.array(values, np.float32))
    for hf_name, values in tensors.items():
        for name, x in convert(arch, c, hf_name, values):
            store(w, name, x, kind, experts)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split("\n\n")[1].strip())
    parser.add_argument("folder")
    parser.add_argument("out")
    parser.add_argument("--type", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--experts", choices=["plain", "mxfp4", "mxfp4-plain"], default="plain")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--llama-cpp", action="store_true")
    a = parser.parse_args()
    logging.getLogger("gguf.gguf_writer").setLevel(logging.ERROR)  # keys are overwritten
    write(a.folder, a.out, a.type, a.experts, a.strict, a.llama_cpp)


if __name__ == "__main__":
    main()
