"""What a configuration repeats of itself."""

# Nodes and settings that conf/ fills in from others, by interpolation.
COPIES = {
    "callbacks.budget.strategy": "budget",
    "callbacks.budget.rollouts_per_prompt": "rollouts_per_prompt",
    "callbacks.temperature.strategy": "temperature",
    "callbacks.temperature.lookahead": "rollout.lookahead",
    "callbacks.reward.pool": "reward",
    "callbacks.reward.shaping": "shaping",
    "callbacks.rollout.engine": "engine",
    "callbacks.rollout.max_new_tokens": "max_new_tokens",
    "callbacks.rollout.abort": "rollout.abort",
    "callbacks.advantage.estimator": "advantage",
    "callbacks.checkpoint.every": "checkpoint_every",
    "module.loss": "loss",
    "data.prompts_per_step": "prompts_per_step",
    "data.lookahead": "rollout.lookahead",
    "trainer.max_epochs": "epochs",
    "trainer.val_check_interval": "validate_every",
    "shaping.limit": "max_new_tokens",
    "loss.max_length": "max_new_tokens",
    "temperature.gain.vocabulary": "vocabulary_size",
}
