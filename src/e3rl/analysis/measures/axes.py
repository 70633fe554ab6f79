"""What curves are drawn against and arms are compared at: the names of costs."""

AXES = ("steps", "rollouts", "tokens", "seconds")
AXIS_LABELS = {
    "steps": "rollout step",
    "rollouts": "rollouts sampled",
    "tokens": "tokens generated",
    "seconds": "seconds of training",
}
AXIS_UNITS = {**AXIS_LABELS, "steps": "rollout steps"}  # after a number
