# SPDX-License-Identifier: Apache-2.0
"""Random words that are the same every time."""
import random

WORDS = ("cache page token build test error value key file line function returns the a of to and "
         "index range loop buffer server client request answer struct pointer size count").split()


class Writer:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def text(self, n):
        words = []
        while n > 0:
            words.append(self.random.choice(WORDS))
            n -= len(words[-1]) + 1
        return " ".join(words)
