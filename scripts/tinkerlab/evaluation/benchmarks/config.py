"""Settings of ``scripts/run_benchmarks.py``; ``templates/benchmarks-config.yaml`` explains each."""

from __future__ import annotations

import math

import chz

from tinkerlab.training import config as configs

# Settings of the cookbook's BenchmarkConfig that have another name here, or none.
ELSEWHERE = {
    "save_dir": "here it is output",
    "model_name": "here it is base_model",
    "limit": "here it is max_examples, as in the cookbook",
    "num_samples": "the cookbook's several samples can't be resumed; for pass@k use"
    " eval_offline.py --samples",
    "judge_sampling_client": "here it is judge_model",
    "judge_renderer": "it is chosen for judge_model",
    "sandbox_factory": "no sandbox is set up here; use eval_offline.py --grader code_tests",
    "grade_fn": "a benchmark with another grader is another benchmark: use eval_offline.py",
    "agent_concurrency": "only single-turn benchmarks are run from here",
    "max_trajectory_tokens": "only single-turn benchmarks are run from here",
    "max_generation_tokens": "only single-turn benchmarks are run from here",
}
# What one benchmark may have otherwise than the others.
PER_BENCHMARK = (
    "max_examples",
    "max_tokens",
    "context_window",
    "temperature",
    "timeout_seconds",
    "concurrency",
    "system_prompt",
)


@chz.chz
class BenchmarksConfig:
    benchmarks: list[str]
    output: str = "results-benchmarks"
    run: str | None = None
    base_model: str | None = None
    checkpoint: str | None = None
    renderer: str | None = None
    max_examples: int | None = None
    max_tokens: int | None = None
    context_window: int | None = None
    temperature: float = 0.6
    timeout_seconds: float | None = None
    concurrency: int = 64
    system_prompt: str | None = None
    per_benchmark: dict[str, dict[str, int | float | str | None]] = chz.field(default_factory=dict)
    judge_model: str | None = None
    seed: int = 0

    @chz.validate
    def _check(self) -> None:
        if not self.benchmarks:
            raise ValueError("benchmarks: name at least one; --list shows them")
        if len(set(self.benchmarks)) != len(self.benchmarks):
            raise ValueError("benchmarks: one is named twice")
        for name in ("max_examples", "max_tokens", "context_window", "concurrency"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        for name in ("temperature", "seed"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be finite and not negative")
        if self.timeout_seconds is not None and not 0 < self.timeout_seconds < math.inf:
            raise ValueError("timeout_seconds must be finite and over 0")
        if not (self.run or self.base_model or self.checkpoint):
            raise ValueError("say what is measured: run, base_model, checkpoint, or two of them")
        for name in self.per_benchmark:
            if name not in self.benchmarks:
                raise ValueError(f"per_benchmark: {name} is not among benchmarks")
            self.of(name)

    def of(self, benchmark: str) -> BenchmarksConfig:
        """The settings of one benchmark, its own ones applied.

        Raises:
            InputError: a setting that it can't have of its own, or a value of the wrong type.
            ValueError: a value out of range.
        """
        where = f"per_benchmark.{benchmark}"
        own = {}
        for key, value in self.per_benchmark.get(benchmark, {}).items():
            own[key] = configs.cast_field(BenchmarksConfig, key, value, where, ELSEWHERE)
            if key not in PER_BENCHMARK:
                raise ValueError(f"{where}: {key} is the same for all; here: {PER_BENCHMARK}")
        return chz.replace(self, **own, per_benchmark={})
