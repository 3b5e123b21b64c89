# SPDX-License-Identifier: Apache-2.0
"""Weights from training loops to their rollout engines: doors for verl (:mod:`caid.rl.verl`), checkpoint-engine
(:mod:`caid.rl.checkpoint_engine`) and SGLang (:mod:`caid.rl.sglang`). docs/RL.md has what to set where."""
