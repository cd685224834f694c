# SPDX-License-Identifier: Apache-2.0
"""The module against the program's results and against itself.

Environment: KVASIR_TEST_MODEL, a small model with a tokenizer; KVASIR_TEST_PROGRAM, `kvasir`.
"""
from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import kvasir

MODEL = os.environ["KVASIR_TEST_MODEL"]
PROGRAM = os.environ["KVASIR_TEST_PROGRAM"]
BITS = os.environ.get("KVASIR_TEST_BITS", "f16")
TEXT = "Once upon a time there was a little girl. She had a red ball and a small dog."


class Base(unittest.TestCase):
    def setUp(self) -> None:
        self.model = kvasir.Model(MODEL)
        self.addCleanup(self.model.close)
        self.ids = self.model.tokenizer.encode(TEXT)

    def context(self) -> kvasir.Context:
        return self.model.context(kv_bits=BITS, ctx=512, threads=1)


class Answers(Base):
    def test_as_the_program(self) -> None:
        out = subprocess.run([PROGRAM, "generate", "-m", MODEL, "--kv-bits", BITS, "-n", "30",
                              "--raw", "-q", "-p", TEXT], capture_output=True, text=True,
                             check=True).stdout
        with self.context() as context:
            text = self.model.generate(TEXT, raw=True, max_tokens=30, context=context)
            self.assertEqual(text.rstrip("\n"), out.rstrip("\n"))
            pieces = list(self.model.stream(self.ids, max_tokens=30, context=context))
        self.assertGreater(len(pieces), 5)
        self.assertEqual("".join(pieces), text)

    def test_stop_texts(self) -> None:
        with self.context() as context:
            whole = self.model.generate(self.ids, max_tokens=40, context=context)
            stop = whole[12:16]
            cut = self.model.generate(self.ids, max_tokens=40, stop=["never there", stop],
                                      context=context)
        self.assertEqual(cut, whole[:whole.index(stop)])

    def test_seeds(self) -> None:
        hot = kvasir.Sampling(temp=1.5, seed=5)
        with self.context() as c:
            first, again = (self.model.generate(self.ids, max_tokens=20, sampling=hot, context=c)
                            for _ in range(2))
            other = self.model.generate(self.ids, max_tokens=20, context=c,
                                        sampling=kvasir.Sampling(temp=1.5, seed=6))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)


class Caches(Base):
    def test_chunks_forks_trims(self) -> None:
        with self.context() as context:
            a = context.sequence()
            every = a.eval(self.ids, logits="all")
            self.assertEqual(every.shape, (len(self.ids), self.model.info.vocab))
            b = context.sequence()
            self.assertIsNone(b.eval(self.ids[:7], logits=None))
            last = b.eval(self.ids[7:])
            np.testing.assert_array_equal(last, every[-1])
            fork = b.fork()
            fork.eval([1, 2, 3], logits=None)
            self.assertEqual((len(b), len(fork)), (len(self.ids), len(self.ids) + 3))
            fork.trim(10)
            np.testing.assert_array_equal(fork.tokens, self.ids[:10])
            np.testing.assert_array_equal(fork.eval(self.ids[10:]), every[-1])
            self.assertGreater(a.nbytes, 0)
            self.assertGreater(context.info.used_bytes, 0)

    def test_files(self) -> None:
        with tempfile.TemporaryDirectory() as folder, self.context() as context:
            path = Path(folder) / "a.safetensors"
            a = context.sequence()
            a.eval(self.ids[:-1], logits=None)
            a.save(path)
            b = context.load(path)
            np.testing.assert_array_equal(b.tokens, a.tokens)
            np.testing.assert_array_equal(b.eval(self.ids[-1:]), a.eval(self.ids[-1:]))
            with self.assertRaises(kvasir.Error) as caught:
                context.load(Path(folder) / "none")
            self.assertIn("No such file", str(caught.exception))

    def test_calibrations(self) -> None:
        """Formats without bases measure nothing."""
        with tempfile.TemporaryDirectory() as folder:
            with self.model.context(kv_bits=BITS, ctx=64, calibrations=folder) as context:
                self.assertEqual(context.info.ctx, 64)
            self.assertEqual(list(Path(folder).iterdir()), [])

    def test_errors(self) -> None:
        with self.assertRaises(kvasir.Error) as caught:
            self.model.context(kv_bits="7")
        self.assertEqual(caught.exception.field, "context.kv_bits")
        self.assertEqual(caught.exception.status, "invalid argument")
        with self.context() as context:
            s = context.sequence()
            with self.assertRaises(kvasir.Error):
                s.eval([self.model.info.vocab])
            with self.assertRaises(kvasir.Error) as caught:
                s.eval(np.resize(self.ids, 600))
            self.assertEqual(caught.exception.status, "context length exceeded")
        with self.assertRaises(ValueError):
            len(s)
        with self.assertRaises(kvasir.Error):
            kvasir.Model("nowhere")

    def test_any_order_of_closing(self) -> None:
        model = kvasir.Model(MODEL)
        context = model.context(kv_bits=BITS, ctx=64)
        sequence = context.sequence()
        model.close()
        sequence.close()
        context.close()
        with self.assertRaises(ValueError):
            context.sequence()


class Texts(Base):
    def test_round_trip(self) -> None:
        t = self.model.tokenizer
        self.assertEqual(t.decode(self.ids, skip_special=True).strip(), TEXT)
        self.assertEqual(len(t.encode("")), len(t.encode("", special=True)))
        self.assertFalse(t.is_end(int(self.ids[1])))
        self.assertEqual(t.size, self.model.info.vocab)

    def test_sampler(self) -> None:
        logits = np.zeros(self.model.info.vocab, np.float32)
        logits[5] = 1
        self.assertEqual(kvasir.Sampler(len(logits)).pick(logits), 5)
        biased = kvasir.Sampling(logit_bias={7: 2.0})
        self.assertEqual(kvasir.Sampler(len(logits), biased).pick(logits), 7)
        with self.assertRaises(ValueError):
            kvasir.Sampler(len(logits)).pick(logits[:-1])

    def test_embeddings(self) -> None:
        texts = ["a little girl", "a little girl", "the red ball"]
        rows = self.model.embed(texts, kv_bits=BITS, threads=1)
        self.assertEqual(rows.shape, (3, self.model.info.dim))
        np.testing.assert_array_equal(rows[0], rows[1])
        self.assertFalse(np.array_equal(rows[0], rows[2]))
        np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
        mean = self.model.embed(texts[:1], pooling=kvasir.Pooling.MEAN,
                                kv_bits=BITS, threads=1)
        self.assertFalse(np.array_equal(mean[0], rows[0]))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], "-v"])
