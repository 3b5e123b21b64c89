# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM in a process of its own. Each line of its stdin is JSON, [call, arguments...], and is answered by a
line of JSON to a file descriptor, since vLLM speaks on stdout."""

import json
import os
import sys

PROMPTS = [[1, 5, 6, 7], [1, 9, 8], list(range(3, 60))]


def tokens(llm, SamplingParams):
    """What it says after the prompts."""
    how = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, detokenize=False)
    done = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], how, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in done]


def main():
    options, answers = json.loads(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w", buffering=1)
    from vllm import LLM, SamplingParams

    defaults = {"enforce_eager": True, "skip_tokenizer_init": True, "max_model_len": 128}
    llm = LLM(**{**defaults, "worker_extension_cls": "told.Told", **options})
    print(json.dumps("ready"), file=answers)
    for line in sys.stdin:
        call, *arguments = json.loads(line)
        try:
            if call == "tokens":
                result = tokens(llm, SamplingParams)
            elif hasattr(llm, call):
                result = getattr(llm, call)(*arguments)
            else:
                result = llm.collective_rpc(call, args=tuple(arguments))
        except Exception as e:
            result = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(result, default=str), file=answers)


if __name__ == "__main__":  # vLLM's own processes import this again
    main()
