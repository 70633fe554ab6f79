"""Run by test_export.py: `python vllm_greedy.py FOLDER PROMPT` prints vLLM's greedy token ids."""

import json
import os
import sys

from e3rl.process.environment import prepare

if __name__ == "__main__":
    prepare()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    llm = LLM(sys.argv[1], enforce_eager=True, max_model_len=128, disable_log_stats=True)
    settings = SamplingParams(temperature=0.0, max_tokens=24)
    (answer,) = llm.generate([sys.argv[2]], settings, use_tqdm=False)
    print("TOKENS", json.dumps(list(answer.outputs[0].token_ids)))
