#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/golden/olmoe: a tiny random OLMoE and its logits by transformers, in the form of the models
of ../shared/fixtures/tiny, but smaller.

    make_tiny_olmoe.py [FOLDER]

config.json and model.safetensors (bfloat16) by save_pretrained; golden.safetensors: input_ids
int32 [320], positions int32 [58], logits float32 [58, 256] at those, by eager attention in float32
over the bfloat16 weights. Every tensor is random, norms too. Made with transformers 5.17.0 and
torch 2.15.0.
"""

import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent / "olmoe")
TOKENS = 320
POSITIONS = [*range(0, 300, 8), *range(300, TOKENS)]

config = transformers.OlmoeConfig(
    vocab_size=256,
    hidden_size=64,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    num_experts=4,
    num_experts_per_tok=2,
    max_position_embeddings=4096,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    dtype="bfloat16",
    attn_implementation="eager",
)
torch.manual_seed(20261122)
model = transformers.OlmoeForCausalLM(config).eval()
with torch.no_grad():
    for name, p in model.named_parameters():
        if "norm" in name:
            p.copy_(1 + 0.3 * torch.randn(p.shape))
        else:  # outputs of about the size of the inputs, whatever the width; routers that decide
            width = 1 if "embed" in name else p.shape[-1]
            p.copy_(torch.randn(p.shape) * (2 if "mlp.gate." in name else 1) / width**0.5)
model.to(torch.bfloat16).save_pretrained(folder)
(folder / "generation_config.json").unlink(missing_ok=True)
# Read back: .to() has rounded rope's frequencies, too.
model = transformers.OlmoeForCausalLM.from_pretrained(
    folder, dtype=torch.float32, attn_implementation="eager"
).eval()
ids = torch.randint(0, config.vocab_size, (1, TOKENS))
with torch.no_grad():
    logits = model(ids).logits[0]
    past, worst = None, 0.0
    for i in range(TOKENS):  # the same from a cache
        step = model(ids[:, i : i + 1], past_key_values=past, use_cache=True)
        past, worst = step.past_key_values, max(worst, (step.logits[0, 0] - logits[i]).abs().max())
print(f"cached decode differs by {worst:.2e}, logits' std {logits.std():.2f}")
save_file(
    {
        "input_ids": ids[0].to(torch.int32),
        "positions": torch.tensor(POSITIONS, dtype=torch.int32),
        "logits": logits[POSITIONS].contiguous(),
    },
    folder / "golden.safetensors",
    metadata={
        "transformers": transformers.__version__,
        "weights": "bfloat16",
        "compute": "float32, eager attention",
    },
)
