"""What the scripts of this folder train, and how they start its ranks. No program."""
import os

# 10.7 million parameters. Layers, heads, width, vocabulary, biases, dropout; sequences per rank, tokens in each.
RUN, SHAPE = "6x384_8x128", (6, 6, 384, 65, False, 0.0, 8, 128)


def mpirun(ranks):
    """The words before a program of so many ranks, by Open MPI: not bound to one core each, as root too, and more than cpus."""
    return ["mpirun", *["--allow-run-as-root"] * (os.geteuid() == 0), *["--oversubscribe"] * (ranks > os.cpu_count()),
            "--bind-to", "none", "-n", str(ranks)]
