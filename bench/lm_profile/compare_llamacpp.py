#!/usr/bin/env python3
"""Greedy decoding: bench_decode and llama.cpp, with the same weights, prompts and number of threads.

    pip install numpy safetensors gguf==0.19.0 xllamacpp==2026.10.11549

Writes a GPT-2 of random weights, exact in bf16, as a Hugging Face folder and as GGUF files of both dtypes. Both sides
warm up first, and prompts are not timed. llama.cpp runs with its defaults, keys and values in f16; ours has all in the
dtype of the weights, and its compiled way counts. Tokens must equal those of llama.cpp with f32 keys and values. If
they differ, its logits at the first different token must be equal up to rounding (its GELU is an f16 table).
"""
import json, math, os, sys, tempfile, time
from importlib.metadata import version

import gguf
import numpy as np
import xllamacpp

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "common"))
from gpt2_weights import SIZES, weights, write_folder
from torch_peer import in_turn, one_of, parse, report_of, table, words

NEAR = {"f32": 4e-3, "bf16": 6e-2}  # log-probabilities: f16 table; bf16 activations


def write_gguf(path, size, w, dtype):
    g = gguf.GGUFWriter(path, "gpt2")
    bf16 = dtype == "bf16"
    g.add_name("random")
    g.add_file_type(32 if bf16 else 0)
    g.add_context_length(size["context"])
    g.add_embedding_length(size["width"])
    g.add_block_count(size["layers"])
    g.add_feed_forward_length(4 * size["width"])
    g.add_head_count(size["heads"])
    g.add_layer_norm_eps(1e-5)
    g.add_tokenizer_model("gpt2")
    g.add_tokenizer_pre("gpt-2")
    g.add_token_list([f"<{i}>" for i in range(size["vocab"])])
    g.add_token_types([1] * size["vocab"])
    g.add_token_merges(["a b"])
    g.add_bos_token_id(0)
    g.add_eos_token_id(0)
    theirs = {"wte": "token_embd", "wpe": "position_embd", "ln_f": "output_norm"}
    for i in range(size["layers"]):
        for ours, name in (("ln_1", "attn_norm"), ("attn.c_attn", "attn_qkv"), ("attn.c_proj", "attn_output"),
                           ("ln_2", "ffn_norm"), ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")):  # fmt: skip
            theirs[f"h.{i}.{ours}"] = f"blk.{i}.{name}"
    for name, x in w.items():
        layer, kind = name.rsplit(".", 1)
        if ".c_" in layer:
            x = np.ascontiguousarray(x.T)
        if bf16 and x.ndim == 2 and layer != "wpe":
            g.add_tensor(f"{theirs[layer]}.{kind}", gguf.quants.quantize(x, gguf.GGMLQuantizationType.BF16),
                         raw_dtype=gguf.GGMLQuantizationType.BF16)  # fmt: skip
        else:
            g.add_tensor(f"{theirs[layer]}.{kind}", x)
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


class LlamaCpp:
    def __init__(self, path, context, threads, exact=False):
        p = xllamacpp.CommonParams()
        p.model.path, p.n_ctx, p.n_parallel, p.verbosity = path, context, 1, -1
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
        if exact:
            p.cache_type_k = p.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
            p.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.server = xllamacpp.Server(p)

    def complete(self, prompt, n, **more):
        r = self.server.handle_completions({"prompt": prompt, "n_predict": n, "temperature": 0.0, "samplers": ["top_k"],
                                            "top_k": 1, "ignore_eos": True, "cache_prompt": True, **more})  # fmt: skip
        r = r if isinstance(r, dict) else json.loads(r)
        if "timings" not in r:
            sys.exit(f"llama.cpp answers {str(r)[:500]}")
        return r

    def decode(self, prompt, n, cpu_time=False):
        """The tokens, whose texts are "<id>", and the seconds of one, with all but the prompt's last token cached."""
        begin = time.process_time()
        r = self.complete(prompt, n)
        seconds = (time.process_time() - begin) / n if cpu_time else 1 / r["timings"]["predicted_per_second"]
        return [int(t) for t in r["choices"][0]["text"].strip("<>").split("><")], seconds

    def gap(self, prompt, one, other):
        """The difference of two next tokens' log-probabilities; infinite if one is not among the top."""
        r = self.complete(prompt, 1, logprobs=50, n_probs=50)
        top = {x["id"]: x["logprob"] for x in r["choices"][0]["logprobs"]["content"][0]["top_logprobs"]}
        return abs(top.get(one, math.inf) - top.get(other, -math.inf))


def check_tokens(peer, dtype, prompt, tokens):
    theirs = peer.decode(prompt, len(tokens))[0]
    first = next((i for i, (mine, other) in enumerate(zip(tokens, theirs)) if mine != other), None)
    if first is None:
        return "equal"
    gap = peer.gap(prompt + tokens[:first], tokens[first], theirs[first])
    if not gap <= NEAR[dtype]:
        sys.exit(f"{dtype}, prompt of {len(prompt)}: token {first} is {tokens[first]} here and {theirs[first]} in "
                 f"llama.cpp, which has them {gap:.3g} apart. At most {NEAR[dtype]} is rounding.")
    return f"equal to token {first}, where two are {gap:.2g} apart"


def main():
    args, error = parse(__doc__, "bench_decode", rounds=5, size=one_of(*SIZES), dtypes=words(NEAR),
                        prompts="32,256,512,900", tokens=32)
    if args.device != "cpu":
        error("llama.cpp runs on the CPU here: leave --device out")
    size, agree = SIZES[args.size], {}

    def measured(d):
        w = weights(size)
        write_folder(d + "/hf", size, w)
        for dtype in args.dtypes:
            path = f"{d}/{dtype}.gguf"
            write_gguf(path, size, w, dtype)
            flags = ["--model", d + "/hf", "--dtypes", dtype, "--prompt", args.prompts, "--tokens", args.tokens,
                     "--rounds", 1]
            exact = LlamaCpp(path, size["context"], args.threads, exact=True)
            for run in report_of(args, flags, d + "/ours.json")["decoding"]:
                agree[name := f"{dtype} after {run['prompt']}"] = check_tokens(exact, dtype, **run["first_text"])
                print(f"{name}: tokens {agree[name]}", flush=True)
            del exact
            peer = LlamaCpp(path, size["context"], args.threads)

            def one(_, flags, folder):
                report, rows = report_of(args, flags, folder + "/ours.json"), {}
                for run in report["decoding"]:
                    prompt = run["first_text"]["prompt"]
                    peer.complete(prompt, 1)  # puts the prompt into the cache
                    rows[f"{dtype} after {run['prompt']}"] = (
                        {"compiled": run["ways"][2]["seconds_per_token"]["median"]},
                        {"llama.cpp": peer.decode(prompt, args.tokens, args.cpu_time)[1]})
                return {**report, "peer": f"xllamacpp {version('xllamacpp')}"}, rows

            yield from in_turn(args, args.threads, {dtype: flags}, one)

    with tempfile.TemporaryDirectory() as folder:
        table(args, measured(folder), key="peer", threads=args.threads, size=args.size, tokens=agree)


if __name__ == "__main__":
    main()
