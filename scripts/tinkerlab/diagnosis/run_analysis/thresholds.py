"""Every threshold of the run analysis, with its reason. "Nats" are per token.

Where no source is named, the value was set so that the healthy runs of ``tests/lab`` (trained
on the rehearsal) and of ``tests/diagnosis`` (seeded noise) stay silent with room to spare.
"""

from __future__ import annotations

# --- losses -----------------------------------------------------------------------------------
DIVERGED_RATIO = 1.5  # late loss / lowest loss: noise and curricula stay under it
FEW_STEPS = 12  # under it a level is the median of 3 values, ...
DIVERGED_RATIO_FEW = 2.5  # ... which noise alone takes to twice the lowest
DIVERGED_NATS = 0.2  # ... and at least this much higher, so that 0.01 -> 0.02 is no divergence
FAR_ABOVE = 2.0  # every late loss this many times the lowest and the first: no noise does that
NOISE_SIGMAS = 6  # ... and this many robust standard deviations (MAD) of the step noise
RISE_ABOVE_START = 1.15  # a loss that ends this much over where it began has not learned
SPIKE_SIGMAS = 10  # heavy-tailed batches of small size reach 6 to 8
SPIKE_RATIO = 1.5  # a spike is also this much over the local median
SPIKE_NATS = 0.3
FLAT_SHARE = 0.05  # "flat": with 2 standard errors added, the loss fell by less than this share
FLAT_STEPS = 30  # fewer steps say nothing about a plateau
OVERFIT_SHARE = 0.03  # held-out loss over its minimum; the same items each time, so no noise
OVERFIT_NATS = 0.02

# --- learning rate ----------------------------------------------------------------------------
LR_TOLERANCE = 0.02  # of the peak: rounding in logs is far below, a wrong total of steps above
LR_OVER_FORMULA = 5.0  # times get_lr; sweeps around the formula reach 2 to 3
LARGEST_FORMULA_LR = 4.991e-4  # largest get_lr in tinker-cookbook 0.5.8 (Qwen3.6-35B-A3B)
SMALLEST_FORMULA_LR = 1.662e-4  # smallest (Llama-3.1-70B): below 5 times this, nothing to ask

# --- resumes ----------------------------------------------------------------------------------
SAME_LOSS = 0.005  # relative: the same weights on the same batch, give or take bf16 kernels
RESUME_JUMP = 0.10  # relative rise of the loss after a resume, and NOISE_SIGMAS
SUBMIT_AHEAD = 1  # tinker-cookbook's default, supervised/train.py Config.submit_ahead

# --- reinforcement learning -------------------------------------------------------------------
KL_START = 0.015  # before any update; healthy mixture-of-experts models stay under 0.011
# (C/recipes/rl_numerics_check/README.md), a skipped chat template gave 0.021 (report C#706)
KL_STABLE = 0.01  # the cookbook's guides: "stable when KL < 0.01"
KL_GROWTH = 3.0  # times its level at the start, and above KL_STABLE
ENTROPY_LEFT = 0.25  # share of the first entropy that is left, and ...
ENTROPY_LOW = 0.15  # ... nats: nearly one choice per token
ENTROPY_EXPLODED = 3.0  # times the first entropy and 1 nat more: sampling has become noise
MIXED_GROUPS = 0.05  # share of groups with unequal rewards, under which nothing is learned
REWARD_STEPS = 5  # equal rewards over fewer steps may be chance
LENGTH_GROWTH = 2.5  # times the first reply length without a better evaluation
EVAL_DROP = 0.03  # absolute fall of a score that is between 0 and 1
EVAL_DROP_SHARE = 0.05  # relative fall of other scores
REWARD_RISE = 0.05  # absolute rise of the mean reward ...
REWARD_RISE_SHARE = 0.1  # ... or share of the reward's own range
FORMAT_RISE = 0.2  # format up by this much while the answers stay within CORRECT_STILL
CORRECT_STILL = 0.02
FORMAT_DONE = 0.9  # format this good throughout while nothing is correct
TRUNCATED_PROBLEM = 0.5  # share of replies cut by the token limit
TRUNCATED_WARNING = 0.3
AT_THE_LIMIT = 0.95  # mean reply length / max_tokens that only cut replies can give

# --- rollouts and evaluations -----------------------------------------------------------------
MARKUP_ROLLOUTS = 3  # rollouts with tool markup, none parsed
MARKUP_SHARE = 0.1
ZERO_SCORES = 5  # examples (or evaluations) that are all exactly zero
RIGHT_SHARE = 0.3  # of zero-scored replies whose own answer equals the reference

# --- time -------------------------------------------------------------------------------------
SLOW_RATIO = 5.0  # times the median step
SLOW_SECONDS = 3.0  # over the median: a loaded laptop stalls for one or two
SLOW_SHARE = 0.1  # of the run's time that the excess of slow steps must make up
WARM_UP_STEPS = 2  # first steps compile, connect and create the session
BATCH_SHARE = 0.5  # of the step's time spent in get_batch: the data is the bottleneck
BATCH_SECONDS = 0.2  # ... and it is worth talking about

# --- checkpoints and the end of the run -------------------------------------------------------
MIN_TTL = 3600  # seconds; documentation of save_state in the SDK
EXPIRES_SOON = 24 * 3600  # seconds that leave a working day to react
STOPPED_AFTER = 1800.0  # seconds without a row, and ...
STOPPED_STEPS = 20  # ... times the median step
