# SPDX-License-Identifier: Apache-2.0
"""Checkpoints, and what most programs want of them: answers and embeddings."""
from __future__ import annotations

import dataclasses
import enum
import os
import threading
import weakref
from typing import Any, Iterator, Mapping, Sequence as Items

import numpy as np
import numpy.typing as npt

from ._library import Error, Handle, check, ffi, lib, new_error
from ._sampling import Sampler, Sampling
from ._sequence import Context
from ._text import Decoder, Ids, Stop, Tokenizer

Message = Mapping[str, Any]


class Pooling(enum.Enum):
    """Which rows of a text its embedding is made of. MODEL: as the checkpoint says."""

    MODEL = "model"
    LAST = "last"
    MEAN = "mean"


@dataclasses.dataclass(frozen=True)
class ModelInfo:
    """ctx_train: tokens that it was trained for; 0: unknown."""

    arch: str
    name: str
    format: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    ctx_train: int
    parameters: int
    weight_bytes: int


class Model(Handle):
    """path: a GGUF file, or a folder with config.json and safetensors."""

    _kind = "model"

    def __init__(self, path: str | os.PathLike[str], *, mlock: bool = False,
                 no_mmap: bool = False) -> None:
        options, error = ffi.new("kvasir_model_options *"), new_error()
        lib.kvasir_model_init(options, ffi.sizeof("kvasir_model_options"))
        options.mlock, options.no_mmap = mlock, no_mmap
        pointer = ffi.new("kvasir_model **")
        check(lib.kvasir_model_open_with(os.fsencode(path), options, pointer, error), error)
        self._pointer = pointer[0]
        self._contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self.path = os.fspath(path)
        self.tokenizer = Tokenizer(lib.kvasir_model_tokenizer(self._pointer))
        self.info = self._read_info()

    def close(self) -> None:
        """Closes its contexts and their sequences, too."""
        for context in list(self._contexts):
            context.close()
        if self._pointer is not None:
            lib.kvasir_model_close(self._pointer)
        self._pointer = None

    def _read_info(self) -> ModelInfo:
        info = ffi.new("kvasir_model_info *")
        lib.kvasir_model_get_info(self._open(), info)
        values: dict[str, Any] = {}
        for field in dataclasses.fields(ModelInfo):
            value = getattr(info, field.name)
            values[field.name] = value if isinstance(value, int) else ffi.string(value).decode(
                "utf-8", "replace")
        return ModelInfo(**values)

    def context(self, *, kv_bits: str | None = None, kv_group_size: str | None = None,
                key_centre: str | os.PathLike[str] | None = None,
                quantized_kv_start: int | None = None, kv_exact_tail: int = 0,
                kv_floor: str | None = None, max_kv_size: int = 0,
                kv_keep: int | None = None, ctx: int = 0, cache_bytes: int = 0,
                prefill_chunk: int | None = None, snapshot_tokens: int = 0, threads: int = 0,
                cpu_tier: str | None = None, act_bits: int | None = None,
                device: str | None = None,
                calibrations: str | os.PathLike[str] | None = None) -> Context:
        """Options as in kvasir_context_options of kvasir.h; None: the library's default.
        calibrations: a folder; a tile format of K takes the model's calibration from there, or
        measures one and keeps it there (kvasir_calibrate.h)."""
        options = {k: v for k, v in locals().items() if k != "self"}
        context = Context(self, options)
        self._contexts.add(context)
        return context

    def _prompt(self, prompt: str | Items[Message] | Ids, raw: bool,
                variables: Mapping[str, Any]) -> Ids:
        if isinstance(prompt, np.ndarray):
            return prompt
        if isinstance(prompt, str):
            if raw or not self.tokenizer.has_chat_template:
                return self.tokenizer.encode(prompt)
            prompt = [{"role": "user", "content": prompt}]
        return self.tokenizer.encode_chat(prompt, **variables)

    def stream(self, prompt: str | Items[Message] | Ids, *, max_tokens: int = 512,
               sampling: Sampling = Sampling(), stop: Items[str] = (), raw: bool = False,
               context: Context | None = None,
               template: Mapping[str, Any] | None = None) -> Iterator[str]:
        """The answer's text as it comes, in whole characters. prompt: a text, which is the user's
        message unless `raw`, a chat, or token ids. context: one to compute in, otherwise one of
        its own. template: variables of the chat template, such as tools."""
        ids = self._prompt(prompt, raw, template or {})
        own = context is None
        used = context or self.context(ctx=len(ids) + max_tokens)
        try:
            yield from _held_back(self._pieces(used, ids, max_tokens, sampling), stop)
        finally:
            if own:
                used.close()

    def _pieces(self, context: Context, ids: Ids, max_tokens: int,
                sampling: Sampling) -> Iterator[str]:
        sampler, decoder = Sampler(self.info.vocab, sampling), Decoder(self.tokenizer)
        sampler.accept(ids)
        with context.sequence() as sequence:
            logits = sequence.eval(ids)
            for i in range(max_tokens):
                token = sampler.pick(logits)
                if self.tokenizer.is_end(token):
                    break
                yield decoder.push(token)
                sampler.accept(token)
                if i + 1 < max_tokens:
                    logits = sequence.eval(np.array([token], np.int32))
        yield decoder.finish()

    def generate(self, prompt: str | Items[Message] | Ids, *, max_tokens: int = 512,
                 sampling: Sampling = Sampling(), stop: Items[str] = (), raw: bool = False,
                 context: Context | None = None,
                 template: Mapping[str, Any] | None = None) -> str:
        """The whole text of stream()."""
        return "".join(self.stream(prompt, max_tokens=max_tokens, sampling=sampling, stop=stop,
                                   raw=raw, context=context, template=template))

    def embed(self, texts: Items[str], *, pooling: Pooling = Pooling.MODEL,
              kv_bits: str | None = None, ctx: int = 0,
              threads: int = 0) -> npt.NDArray[np.float32]:
        """Embeddings of length 1, [len(texts), dim]; each is that of the text alone."""
        kind = {Pooling.MODEL: lib.kvasir_model_pooling(self._open()),
                Pooling.LAST: lib.KVASIR_POOLING_LAST,
                Pooling.MEAN: lib.KVASIR_POOLING_MEAN}[pooling]
        ids = [self.tokenizer.encode(text) for text in texts]
        longest = max((len(i) for i in ids), default=0)
        return _Embedder(self, kind, kv_bits, ctx or longest, threads).run(ids)


def _held_back(pieces: Iterator[str], stop: Items[str]) -> Iterator[str]:
    """Ends before the first stop text, however it is cut into pieces."""
    end = Stop(stop)
    for piece in pieces:
        text, ended = end.push(piece)
        if text:
            yield text
        if ended:
            return
    text = end.finish()
    if text:
        yield text


class _Embedder:
    """One engine, for one call of embed()."""

    def __init__(self, model: Model, pooling: int, kv_bits: str | None, ctx: int,
                 threads: int) -> None:
        options, error = ffi.new("kvasir_engine_options *"), new_error()
        lib.kvasir_engine_init(options, ffi.sizeof("kvasir_engine_options"),
                               ffi.sizeof("kvasir_context_options"))
        options.no_prefix_cache = True
        options.context.ctx, options.context.threads = ctx, threads
        bits = ffi.new("char[]", kv_bits.encode()) if kv_bits else None
        if bits is not None:
            options.context.kv_bits = bits
        pointer = ffi.new("kvasir_engine **")
        check(lib.kvasir_engine_create(model._open(), options, pointer, error), error)
        self._engine, self._pooling = pointer[0], pooling
        self._dim = model.info.dim

    def run(self, ids: list[Ids]) -> npt.NDArray[np.float32]:
        out = np.empty((len(ids), self._dim), np.float32)
        done, failed = threading.Semaphore(0), dict[int, Error]()

        def take(user: Any, event: Any) -> None:
            i = int(ffi.cast("uintptr_t", user))
            if event.embedding:
                out[i] = np.frombuffer(ffi.buffer(event.embedding, self._dim * 4), np.float32)
            if event.error:
                failed[i] = Error(event.error, event.error.code)
            if event.last:
                done.release()

        on_event = ffi.callback("kvasir_event_fn", take)
        try:
            for i, tokens in enumerate(ids):
                self._submit(i, tokens, on_event)
                done.acquire()  # one at a time: no queue to overrun
        finally:
            lib.kvasir_engine_destroy(self._engine)
        for error in failed.values():
            raise error
        return out

    def _submit(self, i: int, tokens: Ids, on_event: Any) -> None:
        request, error = ffi.new("kvasir_request *"), new_error()
        lib.kvasir_request_init(request, ffi.sizeof("kvasir_request"),
                                ffi.sizeof("kvasir_sampling"))
        request.tokens, request.n_tokens = ffi.from_buffer("int32_t[]", tokens), len(tokens)
        request.embed = self._pooling
        request.on_event, request.user = on_event, ffi.cast("void *", i)
        check(lib.kvasir_engine_submit(self._engine, request, ffi.new("uint64_t *"), error), error)
