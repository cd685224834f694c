#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""exactness_peer.py PEER MODEL PORT    a server of another project, for bench/exactness.sh

PEER   llama-server        llama.cpp's, from PyPI's xllamacpp, with 8 slots of 4,096 tokens
       llama-server-q8     the same with --cache-type-k q8_0 --cache-type-v q8_0
       llama-server-reuse  the same with --cache-reuse 256
"""
import sys
import threading


def llama_server(model, port, setting):
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.port, p.verbosity, p.fit_params = model, port, -1, False
    p.n_parallel, p.n_ctx = 8, 8 * 4096
    if setting == "q8":
        p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_Q8_0
    elif setting == "reuse":
        p.n_cache_reuse = 256
    elif setting:
        sys.exit(f"no setting is called {setting}")
    return xllamacpp.Server(p)


def main():
    peer, model, port = sys.argv[1:]
    if not peer.startswith("llama-server"):
        sys.exit(f"no peer is called {peer}")
    server = llama_server(model, int(port), peer[len("llama-server-"):])
    print(server.listening_address, flush=True)
    threading.Event().wait()


main()
