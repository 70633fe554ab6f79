"""Numbers of studies' prose that no table prints: the words, and what computes them."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from computed_values import (
    answers,
    beyond_the_dual_clip,
    blocks_on_a_gpu,
    canaries_on_a_gpu,
    covered,
    detectable,
    detectable_at_one,
    entropies,
    entropy_errors,
    gaps_on_a_gpu,
    gradients_on_a_gpu,
    judged_512,
    largest_shifts,
    least_and_most,
    means_over_training,
    memory,
    memory_forecast,
    noise_of_knapsack,
    of_failures,
    of_policies,
    of_schedules_and_e3,
    of_seeds,
    of_stage,
    of_the_core,
    order_of_noise,
    overlap,
    p_among_four,
    p_of,
    p_of_both_looks,
    p_of_budgets,
    p_of_one_look,
    p_of_schedules,
    prompt_means,
    rollouts_of_ten_seeds,
    rollouts_of_trl,
    schedule_of_the_older_runs,
    schedules_of_smollm2,
    sds_of_seeds,
    seconds_of_a_step,
    seconds_of_a_step_in_the_ledger,
    surer_than_said,
    surer_where_studies_differ,
    token_means,
    updates_forecast,
    updates_of_trl,
)


class Computed(NamedTuple):
    page: str
    words: str  # with a place for every number
    numbers: Callable[[], Iterator[str]]


FIRST, LAST = "first 8 steps", "last 10 steps"
COMPUTED = (
    Computed(
        "ablation_grid",
        "they cost {} to {} % (knapsack), {} to {} % (e3_rank) or {} to {} % (hora)",
        token_means,
    ),
    Computed("ablation_grid", "(knapsack +{} to {} %, hora +{} to {} %)", prompt_means),
    Computed("rollout_budget", "knapsack {} %, e3_rank {} %, hora {} %", order_of_noise),
    Computed("answer_verification", "are judged in {} s by one worker and {} s by two", judged_512),
    Computed("vllm_throughput", "a step took {} ({} to {}) times", lambda: overlap("embedded")),
    Computed(
        "vllm_throughput", "and {} ({} to {}) with the 30M one", lambda: overlap("random 30M")
    ),
    Computed(
        "smollm2_schedules",
        "mean temperature over training was {} to {},",
        schedules_of_smollm2,
    ),
    Computed("carries_bed", "that took {} seconds a step", seconds_of_a_step_in_the_ledger),
    Computed("carries_bed", "first run takes {} seconds a step", seconds_of_a_step),
    Computed("resources", "peaks at {} to {} GiB", memory),
    Computed(
        "entropy_control",
        "their means over training more clearly ({} and {}, p below {})",
        means_over_training,
    ),
    Computed(
        "arithmetic_schedules",
        "with a schedule was {} points above GRPO",
        schedule_of_the_older_runs,
    ),
    Computed(
        "arithmetic_schedules",
        "If the truth is the +{} of the older runs",
        schedule_of_the_older_runs,
    ),
    Computed(
        "carries_parts",
        "r - 1 - ln r above {}, and in no step above {}, so that at most {} % of a run's tokens, "
        "and {} % of a step's",
        beyond_the_dual_clip,
    ),
    Computed("carries_policies", "p in pass@1 was {}, and no verdict", p_of_one_look),
    Computed("carries_ten_seeds", "in pass@1 goes from p {} to {})", p_of_both_looks),
    Computed("carries_policies", "themselves are known is {} to {} %", entropy_errors),
    Computed("carries_ten_seeds", "were looked at before ( p {})", p_among_four),
    Computed(
        "carries_first_policies",
        "after 128 steps, {}, and  lowers pass@1 at equal tokens, {}.",
        of_the_core,
    ),
    Computed("carries_factorial", "their page has {} for the rollouts", rollouts_of_ten_seeds),
    Computed(
        "carries_factorial", "of the rollouts was {}, with an interval", rollouts_of_ten_seeds
    ),
    Computed(
        "entropy_control",
        "of its entropy ({} → {}).",
        lambda: entropies("entropy_control", "entropy", ("grpo", FIRST), ("grpo", LAST)),
    ),
    Computed(
        "entropy_control",
        "TS holds it: {} up to the start of annealing, {} at the end.",
        lambda: entropies("entropy_control", "entropy", ("ts", "steps 20 to 115"), ("ts", LAST)),
    ),
    Computed(
        "entropy_control",
        "TS + AN ends at {} and E3 at {}, nine",
        lambda: entropies("entropy_control", "entropy", ("ts_an", LAST), ("e3", LAST)),
    ),
    Computed(
        "entropy_control",
        "ER slows the fall ({}).",
        lambda: entropies("entropy_control", "entropy", ("grpo_er", LAST)),
    ),
    Computed(
        "entropy_control",
        "where GRPO does ({} and {} against {}).",
        lambda: entropies(
            "entropy_control", "entropy_at_one", ("ts", LAST), ("ts_an", LAST), ("grpo", LAST)
        ),
    ),
    Computed(
        "entropy_control",
        "E3's {} is of rollouts",
        lambda: entropies("entropy_control", "entropy_at_one", ("e3", LAST)),
    ),
    Computed("entropy_control", "and may be {} to {} points", sds_of_seeds),
    Computed(
        "gain_modes", "alike and small: {} to {} % of the target", lambda: answers("steady", 1)
    ),
    Computed("gain_modes", "All end at {} to {} times", lambda: answers("rise", 2)),
    Computed(
        "gain_modes",
        "**solve pays in noise**: {} % against {} and {} % at the end",
        lambda: answers("noise", 1, "gain_solve", "gain_paper", "gain_elasticity"),
    ),
    Computed(
        "gain_modes",
        "and {} against {} and {} before",
        lambda: answers("before", 1, "gain_solve", "gain_paper", "gain_elasticity"),
    ),
    Computed(
        "rollouts_to_accuracy",
        "of TS + AN is {}, {}, {}, {} and {}, E3's {}, {}, {}, {} and {} (",
        of_schedules_and_e3,
    ),
    Computed(
        "rollouts_to_accuracy",
        "TS + AN are {} to {} seed by seed, at 55 % {} to {}",
        lambda: least_and_most("50", "55"),
    ),
    Computed(
        "pass_at_k",
        "detectable differences of {} to {} points",
        lambda: detectable(("pass_at_k", "at_one")),
    ),
    Computed(
        "pass_at_k",
        "in 80 of 100 such studies {} and {} would have been",
        lambda: detectable(("pass_at_k", "interaction")),
    ),
    Computed(
        "length_reward",
        "such a correction is {} to {} points",
        lambda: detectable_at_one("length_reward"),
    ),
    Computed(
        "carries_core",
        "entropy ends at {} nats where it begins at {}, and",
        lambda: (
            f"0{x}"
            for x in entropies(
                "carries_core", "entropy", ("grpo", "last 16 steps"), ("grpo", FIRST)
            )
        ),
    ),
    Computed(
        "coverage",
        "simulation's own error: {} to {} of 100",
        lambda: covered("results", of_seeds),
    ),
    Computed(
        "coverage",
        "as sure as it says**, {} to {} of 100",
        lambda: covered("results", lambda row: of_seeds(row) and row["measure"] == "P(better)"),
    ),
    Computed(
        "coverage",
        "with 5 and 10 seeds, {} to {} of 100",
        lambda: covered("studies", lambda row: row["luck"] == "normal"),
    ),
    Computed(
        "coverage",
        "between two evaluations, {} to {} of 100",
        lambda: covered("equal_entropy", of_seeds),
    ),
    Computed(
        "coverage",
        "differences hold the truth in {} to {} of 100",
        lambda: covered("results", lambda row: of_seeds(row) and "noise shared" in row["measure"]),
    ),
    Computed(
        "coverage",
        "seeds {} of {} cells are above 97, of which {} by more than twice the simulation's error, "
        "{} of these",
        surer_than_said,
    ),
    Computed("coverage", "same interval, {} of {} are above 97", surer_where_studies_differ),
    Computed("coverage", "of these first policies in {} to {} of 100", of_policies("these")),
    Computed(
        "coverage", "in {} to {} where a method does the same", of_policies("first", multiple=0.0)
    ),
    Computed(
        "coverage", "in {} to {} where what it does varies half", of_policies("first", multiple=0.5)
    ),
    Computed("coverage", "in {} to {} where as much", of_policies("first", multiple=1.0)),
    Computed(
        "coverage",
        "long tails and rare failures {} to {} of 100",
        lambda: covered("studies", lambda row: row["luck"] in ("long", "rare")),
    ),
    Computed(
        "coverage",
        "intervals of shares {} to {}, of IQM",
        lambda: covered("studies", of_failures("pass@1", "pass@16")),
    ),
    Computed("coverage", "of IQM {} to {}, while", lambda: covered("studies", of_failures("IQM"))),
    Computed(
        "coverage",
        "and P(better) {} to {} of 100.",
        lambda: covered("studies", of_failures("Δ pass@1", "Δ pass@16", "P(better)")),
    ),
    Computed(
        "entropy_control",
        "Holm's p is {} for TS and TS + AN at equal tokens, {} and {} at equal rollouts",
        p_of_schedules,
    ),
    Computed(
        "entropy_control",
        "ER's p is {} and {} (",
        lambda: p_of(("grpo_er", "tokens"), ("grpo_er", "rollouts")),
    ),
    Computed(
        "rollout_budget",
        "Holm's p is {} for hora, {} for knapsack and {} for e3_rank at equal tokens, "
        "{}, {} and {} at equal rollouts",
        p_of_budgets,
    ),
    Computed(
        "gpu_smoke",
        "off by {} nats or more in float32, by {} in bfloat16 and by {} at 1.5 B",
        canaries_on_a_gpu,
    ),
    Computed(
        "gpu_smoke",
        "to {} nats in float32, of one token in fifty more; to {} where products are rounded to "
        "TF32, to {} in bfloat16",
        gaps_on_a_gpu,
    ),
    Computed("gpu_smoke", "are off by {}, {} and {} of their norm", gradients_on_a_gpu),
    Computed(
        "gpu_smoke",
        "{} s, where the plan had said {} from",
        of_stage("large", "update s", "predicted update s", digits=1),
    ),
    Computed("gpu_smoke", "which makes {} s of the run", lambda: updates_forecast(2048)),
    Computed("gpu_smoke", "takes 5 of them, {} s by the plan", lambda: updates_forecast(16384)),
    Computed(
        "gpu_smoke",
        "({} GiB, where torch held {})",
        of_stage("large", "predicted GiB", "torch GiB", digits=1),
    ),
    Computed("gpu_smoke", "Without them it says {},", memory_forecast),
    Computed(
        "gpu_smoke", "({} of {} GiB), and took {} times as long as whole logits", blocks_on_a_gpu
    ),
    Computed(
        "gpu_smoke",
        "two or three such passes: {} s",
        of_stage("default", "update s", digits=3),
    ),
    Computed("gpu_smoke", "The update of {} s in bfloat16", of_stage("bfloat16", "update s")),
    Computed("gpu_smoke", "the same one took {} in", of_stage("bfloat16, vLLM", "update s")),
    Computed("ablation_grid", "(knapsack under plain GRPO {} %)", noise_of_knapsack),
    Computed(
        "equal_cost",
        "by more than {} points; but for carries_abort by no more than {}",
        largest_shifts,
    ),
    Computed(
        "speed",
        "its update takes {} of TRL's seconds for the embedded policy and {} for",
        updates_of_trl,
    ),
    Computed(
        "speed",
        "the larger policies in {} (134 M) and {} (large vocabulary) of the seconds of TRL's "
        "sampling by transformers, and the embedded one in {} times",
        rollouts_of_trl,
    ),
)
