"""The model that this folder's scripts train, and the launch of its ranks."""
import os

# 10.7 million parameters. Layers, heads, width, vocabulary, biases, dropout; sequences per rank, tokens in each.
RUN, SHAPE = "6x384_8x128", (6, 6, 384, 65, False, 0.0, 8, 128)


def mpirun(ranks):
    """The Open MPI launch command for `ranks` ranks: unbound, allowing root and more ranks than cpus."""
    return ["mpirun", *["--allow-run-as-root"] * (os.geteuid() == 0), *["--oversubscribe"] * (ranks > os.cpu_count()),
            "--bind-to", "none", "-n", str(ranks)]
