"""The rollout worker: takes prompts, generates, scores, and hands the results on."""
