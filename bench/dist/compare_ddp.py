#!/usr/bin/env python3
"""Data parallel steps of a GPT on the CPU: `mpirun -n 2 tapegrad train` and PyTorch's DistributedDataParallel (gloo).

The model has 6 layers of width 384, 10.7 million parameters, in the forms of bench/gpt_training/compare_torch.py. Each
rank has a separate batch of 8 x 128 random tokens and --threads threads; a step is forward, backward, the mean of the
gradients over the ranks, their norm with clipping, and AdamW. The messages' cost is the time of a step minus that of
one without them: PyTorch's under no_sync(), ours of as many independent processes at once, each with the work of a
rank.
"""
import os, socket, sys, tempfile, time
from types import SimpleNamespace

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("common", "gpt_training"):
    sys.path.insert(0, os.path.join(HERE, os.pardir, folder))
from torch_gpt import gpt
from torch_peer import PRECISIONS, Peer, median_of_steps, medians, one_of, parse, rounds_of, table, words
from train_runs import OF_RANKS, flags_of, mpirun, report_of, seconds_of, step_of, train

(RUN, SHAPE), = OF_RANKS.items()
# DDP variants: default, gradients as views of its buckets, compiled.
WAYS = {"ddp eager": {}, "ddp eager views": {"gradient_as_bucket_view": True},
        "ddp compile": {"gradient_as_bucket_view": True}}


def of_rank(rank, args, way, port, results):
    """A rank of PyTorch; rank 0 queues the seconds of a step with and without messages."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(args.threads)
    torch.set_float32_matmul_precision(args.matmul_precision)
    torch.manual_seed(1)  # the same weights on all ranks
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=args.ranks)
    model = torch.nn.parallel.DistributedDataParallel(gpt(torch, *SHAPE[:4], SHAPE[7], *SHAPE[4:6]), **WAYS[way])
    function = torch.compile(model) if "compile" in way else model
    torch.manual_seed(2 + rank)
    tokens, targets = (torch.randint(SHAPE[3], SHAPE[6:]) for _ in range(2))
    args.now, args.wait = time.perf_counter, lambda: None
    step = step_of(torch, args, model, lambda: function(tokens, targets), "fused")

    def measured():
        dist.barrier()
        return median_of_steps(args, step)

    seconds = {"step": measured()}
    with model.no_sync():
        seconds["no_sync"] = measured()
    if rank == 0:
        results.put(seconds)
    dist.barrier()
    dist.destroy_process_group()


def ways_of(torch, _, args):
    """{way: function that starts the ranks, which time a step with and without messages}."""
    names = ("ranks", "threads", "device", "dtype", "matmul_precision", "warmup", "steps")  # what spawn can copy
    settings = SimpleNamespace(**{k: getattr(args, k) for k in names})

    def measured(way):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        results = torch.multiprocessing.get_context("spawn").SimpleQueue()
        ranks = torch.multiprocessing.spawn(of_rank, (settings, way, port, results), args.ranks, join=False)
        while not ranks.join(timeout=0.5):  # raises a rank's exception
            pass
        return results.get()

    return {way: (lambda way=way: measured(way)) for way in args.ways}


def ours(args, folder):
    """({mode: seconds} of a step, {mode: seconds} without messages, output of the last run)."""
    flags = flags_of(args, RUN, folder)
    logs, printed = train(args, folder, {**flags, "accumulate": args.ranks}, launch=mpirun(args.ranks))
    alone, _ = train(args, folder, flags, copies=args.ranks)
    return seconds_of(logs, args.warmup), seconds_of(alone, args.warmup), printed


def main():
    args, error = parse(__doc__, "tapegrad", ways_of, steps=(3, 10), threads=1, ranks=2, ways=words(WAYS),
                        dtype=one_of("f32", "bf16"), matmul_precision=one_of(*PRECISIONS))
    if args.cpu_time or args.device != "cpu":
        error("it measures wall time on the CPU: leave --cpu-time and --device out")
    peer, messages = Peer(args), {}

    def measured():
        with tempfile.TemporaryDirectory() as folder:
            rounds, shares = rounds_of(args, args.ranks * args.threads, RUN, lambda: (ours(args, folder), peer(RUN)))
            steps = lambda key: [{way: t[key] for way, t in theirs.items()} for _, theirs in rounds]
            for side, with_them, without in (("ours", medians([m for (m, _, _), _ in rounds]),
                                              medians([alone for (_, alone, _), _ in rounds])),
                                             ("torch", medians(steps("step")), medians(steps("no_sync")))):
                for way, seconds in with_them.items():
                    messages[f"{side} {way}"] = {"step": seconds, "without": without[way]}
                    print(f"  {side:5} {way:18} {1e3 * seconds:9.1f} ms a step, {1e3 * without[way]:9.1f} without "
                          f"messages: "
                          f"they cost {1e3 * (seconds - without[way]):+8.1f} ms")
            yield (f"{RUN}, {args.ranks} ranks", [mine for (mine, _, _), _ in rounds], steps("step"), shares,
                   report_of(args, rounds[-1][0][2], torch=peer.version))

    table(args, measured(), ranks=args.ranks, threads=args.threads, steps=args.steps, dtype=args.dtype,
          matmul_precision=args.matmul_precision, messages=messages)


if __name__ == "__main__":
    main()
