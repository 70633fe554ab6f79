"""e3rl: rollout budgets, temperature schedules and honest statistics around GRPO.

Importing the package only prepares the process environment (see `process/environment.py`); torch,
lightning and transformers are imported by the modules that need them.
"""

from e3rl.process.environment import prepare

prepare()

__version__ = "0.1.0"
