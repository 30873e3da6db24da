"""`make bench`: all benchmarks, on the artifacts of `make run`."""

import stages  # noqa: F401  (sets how OpenMP waits, before torch is imported)
from tests.benchmarks import code, history, orchestration, report, sampling, scoring, start_up, update

if __name__ == "__main__":  # workers of vLLM import this module anew
    for benchmark in (history, orchestration, report, start_up, scoring, code, sampling, update):
        benchmark.main()
