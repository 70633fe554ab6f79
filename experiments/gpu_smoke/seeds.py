"""What a seed of its own for each rollout costs vLLM: seconds of sampling with and without.

    python experiments/gpu_smoke/seeds.py FOLDER DEVICE ROLLOUTS TOKENS

Prints JSON: the fastest of three rounds each, in turn. vLLM's first model runner, the one of CPUs,
has a generator for each rollout with a seed; its second one, of GPUs, draws for all in one kernel.
"""

import json
import os
import sys
import time

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
ROUNDS = 3


def main() -> None:
    from vllm import LLM, SamplingParams

    folder, device, rollouts, tokens = *sys.argv[1:3], int(sys.argv[3]), int(sys.argv[4])
    places = {"gpu_memory_utilization": 0.45}
    if device == "cpu":
        places = {"kv_cache_memory_bytes": 2**28, "enable_chunked_prefill": False}
    llm = LLM(
        folder, skip_tokenizer_init=True, enforce_eager=True, max_model_len=tokens + 32, **places
    )
    prompts = [{"prompt_token_ids": [2 + n % 8, 3, 4, 5]} for n in range(rollouts)]
    best: dict[str, float] = {}
    for number in range(ROUNDS):
        for name in ("seeds", "none"):
            parameters = [
                SamplingParams(
                    temperature=1.0,
                    seed=rollouts * number + n if name == "seeds" else None,
                    max_tokens=tokens,
                    logprobs=0,
                    detokenize=False,
                    ignore_eos=True,
                )
                for n in range(rollouts)
            ]
            started = time.perf_counter()
            llm.generate(prompts, parameters, use_tqdm=False)
            seconds = time.perf_counter() - started
            best[name] = min(best.get(name, seconds), seconds)
    print(json.dumps(best))


if __name__ == "__main__":
    main()
