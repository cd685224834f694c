# SPDX-License-Identifier: Apache-2.0
"""Language models with a KV cache that is quantized end to end.

    Model      a checkpoint: a GGUF file, or a folder with config.json and safetensors
    Tokenizer  texts and chats to token ids, and back
    Context    threads and the memory of a cache, for one model; one thread at a time
    Sequence   one sequence of tokens and its pages: evaluated, forked, trimmed, saved
    Sampler    picks the next token from logits

Each has close(), and is a context manager. Closing a model closes what was made of it. Token ids
are numpy arrays of int32, logits numpy arrays of float32. Errors of the library are kvasir.Error.
"""
from __future__ import annotations

from ._library import Cancelled, Error
from ._model import Message, Model, ModelInfo, Pooling
from ._sampling import Sampler, Sampling
from ._sequence import Context, ContextInfo, Sequence
from ._text import Tokenizer

__all__ = ["Cancelled", "Context", "ContextInfo", "Error", "Message", "Model", "ModelInfo",
           "Pooling", "Sampler", "Sampling", "Sequence", "Tokenizer"]
