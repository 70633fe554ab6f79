"""The budget rules that a configuration names."""

from omegaconf import DictConfig


def chosen_rules(cfg: DictConfig) -> dict[str, DictConfig]:
    """The rules to try by name; ValueError for a name that is not among them."""
    unknown = [name for name in cfg.rules if name not in cfg.budgets]
    if unknown:
        raise ValueError(f"rules={unknown}: use some of {', '.join(cfg.budgets)}")
    return {name: cfg.budgets[name] for name in cfg.rules or cfg.budgets}
