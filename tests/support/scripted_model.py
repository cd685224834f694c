#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripted_model.py OUT SCRIPTS: a checkpoint that answers with given texts, to the letter.

SCRIPTS is a JSON object {"chat_template": TEXT, "scripts": {NAME: TEXT}, "control": [TEXT]}. A
prompt that ends with <|NAME|> is answered with that script and the end token, token by token,
whatever the sampler's seed (temperature 0). So clients can be tested on tool calls and reasoning
without a model that makes them. Scripts named in "endless": [NAME] begin again where they would
end; "context" is the longest sequence, 2,048 tokens if it is missing.

How: embeddings are unit vectors, all layers are zero, and the output matrix sends each token to the
next of its script. A script is cut into pieces of a few characters, each a token of its own that
no text is tokenized to (there are no merges). A text of "control", which may be left out, is one
control token; only one script may hold it, and once.
"""
import array
import json
import os
import re
import struct
import sys

VOCAB = 1024
BOS, EOS, FIRST = 256, 257, 258


def byte_alphabet():
    """GPT-2's characters for bytes."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    chars, free = {}, 0x100
    for b in range(256):
        chars[b] = chr(b) if b in prints else chr(free)
        free += b not in prints
    return chars


def cut(text, used):
    """Pieces that no earlier script has; they grow until they are new."""
    pieces, at = [], 0
    while at < len(text):
        end = at + 2 + (3 * len(pieces) + len(text)) % 4
        while end < len(text) - 1 and text[at:end] in used:
            end += 1
        if end >= len(text) - 1:  # the rest becomes one piece
            end = len(text)
            while text[at:end] in used:
                at -= len(pieces.pop())
        used.add(text[at:end])
        pieces.append(text[at:end])
        at = end
    return pieces


def main():
    out, scripts = sys.argv[1], json.load(open(sys.argv[2]))
    os.makedirs(out, exist_ok=True)
    chars = byte_alphabet()
    vocab = {chars[b]: b for b in range(256)}
    added = [("<s>", BOS), ("</s>", EOS)]
    follows, used, token = {}, set(), FIRST
    control = scripts.get("control", [])
    parts = re.compile("(" + "|".join(map(re.escape, control)) + ")" if control else "$^")
    for name, text in scripts["scripts"].items():
        added.append((f"<|{name}|>", token))
        before = begin = token
        token += 1
        for piece in [p for part in parts.split(text)
                      for p in ([part] if part in control else cut(part, used))]:
            if piece in control:
                added.append((piece, token))
            else:
                vocab["".join(chars[b] for b in piece.encode())] = token
            follows[before] = token
            before, token = token, token + 1
        endless = name in scripts.get("endless", [])
        follows[before] = follows[begin] if endless else EOS
    assert token <= VOCAB and len(vocab) + len(added) == token, "the scripts are too long"

    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": t, "special": t[2:-2] not in scripts["scripts"]}
                         for t, i in added],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    }
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": VOCAB,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "hidden_act": "silu",
        "num_hidden_layers": 1, "intermediate_size": 64,
        "max_position_embeddings": scripts.get("context", 2048),
        "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS,
    }
    tokenizer_config = {"bos_token": "<s>", "eos_token": "</s>",
                        "chat_template": scripts["chat_template"]}
    for name, data in (("tokenizer.json", tokenizer), ("config.json", config),
                       ("tokenizer_config.json", tokenizer_config)):
        json.dump(data, open(os.path.join(out, name), "w"))
    write_weights(os.path.join(out, "model.safetensors"), follows)


def write_weights(path, follows):
    def zeros(rows, columns):
        return array.array("f", bytes(4 * rows * columns))

    embed, head = zeros(VOCAB, VOCAB), zeros(VOCAB, VOCAB)
    for token in range(VOCAB):
        embed[token * VOCAB + token] = 1
        head[follows.get(token, EOS) * VOCAB + token] = 1
    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": ((VOCAB, VOCAB), embed),
        "lm_head.weight": ((VOCAB, VOCAB), head),
        "model.norm.weight": ((VOCAB,), array.array("f", [1] * VOCAB)),
        layer + "input_layernorm.weight": ((VOCAB,), array.array("f", [1] * VOCAB)),
        layer + "post_attention_layernorm.weight": ((VOCAB,), array.array("f", [1] * VOCAB)),
    }
    for name, rows, columns in (("self_attn.q_proj", 128, VOCAB), ("self_attn.k_proj", 64, VOCAB),
                                ("self_attn.v_proj", 64, VOCAB), ("self_attn.o_proj", VOCAB, 128),
                                ("mlp.gate_proj", 64, VOCAB), ("mlp.up_proj", 64, VOCAB),
                                ("mlp.down_proj", VOCAB, 64)):
        tensors[f"{layer}{name}.weight"] = ((rows, columns), zeros(rows, columns))
    header, at = {}, 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * len(data)]}
        at += 4 * len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for _, data in tensors.values():
            data.tofile(f)


if __name__ == "__main__":
    main()
