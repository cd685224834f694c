# SPDX-License-Identifier: Apache-2.0
"""From logits to tokens."""
from __future__ import annotations

import dataclasses
import secrets
from typing import Any, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from ._library import check, ffi, lib, new_error


@dataclasses.dataclass(frozen=True)
class Sampling:
    """How tokens are picked; the defaults are greedy. Ranges and order of the filters are those of
    kvasir_sampling in kvasir.h. seed None: a random one."""

    temp: float = 0.0
    top_p: float = 0.0
    min_p: float = 0.0
    min_tokens_to_keep: int = 1
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    top_k: int = 0
    repetition_penalty: float = 0.0
    repetition_context: int = 20
    presence_penalty: float = 0.0
    presence_context: int = 20
    frequency_penalty: float = 0.0
    frequency_context: int = 20
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    seed: int | None = None

    def _fill(self, out: Any) -> Any:
        """Sets a kvasir_sampling; returns what has to live as long."""
        lib.kvasir_sampling_init(ffi.addressof(out), ffi.sizeof("kvasir_sampling"))
        for field in dataclasses.fields(self):
            if field.name not in ("logit_bias", "seed"):
                setattr(out, field.name, getattr(self, field.name))
        biases = ffi.new("kvasir_logit_bias[]",
                         [{"token": t, "bias": b} for t, b in self.logit_bias.items()])
        out.logit_bias, out.n_logit_bias = biases, len(self.logit_bias)
        out.seed = secrets.randbits(63) if self.seed is None else self.seed
        return biases


class Sampler:
    """vocab: the number of logits (Model.info.vocab)."""

    def __init__(self, vocab: int, sampling: Sampling = Sampling()) -> None:
        options, error = ffi.new("kvasir_sampling *"), new_error()
        kept = sampling._fill(options[0])
        pointer = ffi.new("kvasir_sampler **")
        check(lib.kvasir_sampler_create(options, vocab, pointer, error), error)
        del kept  # the library has copied it
        self._pointer = ffi.gc(pointer[0], lib.kvasir_sampler_destroy)
        self._vocab = vocab

    def pick(self, logits: npt.NDArray[np.float32]) -> int:
        if logits.shape != (self._vocab,) or logits.dtype != np.float32:
            raise ValueError(f"logits must be {self._vocab} values of float32")
        return int(lib.kvasir_sampler_pick(
            self._pointer, ffi.from_buffer("float[]", np.ascontiguousarray(logits))))

    def accept(self, tokens: int | Iterable[int]) -> None:
        """Tokens that follow each other, of a prompt or picked: penalties look at them."""
        for token in [tokens] if isinstance(tokens, (int, np.integer)) else tokens:
            lib.kvasir_sampler_accept(self._pointer, int(token))
