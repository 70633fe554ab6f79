"""Where the time of each arm went, as bars of the report page that need no script."""

from html import escape

from e3rl.analysis.figures.time_panels import PHASE_COLOURS, format_seconds
from e3rl.analysis.measures.arms import arm_label
from e3rl.analysis.measures.resources import mean_phase_seconds
from e3rl.analysis.sources.runs import Arms
from e3rl.ledger.phases import PHASES

NOTE = (
    "Seconds of a run, mean over seeds, from the start of its process to its summary; a bar is as "
    "long as its arm took against the longest. Validation is one phase, whatever happens in it."
)


def time_bars(arms: Arms) -> str:
    """A stacked bar per arm and what its colours mean; a sentence where no run recorded phases."""
    found = {arm: mean_phase_seconds(runs) for arm, runs in arms.items()}
    totals = {arm: sum(phases.values()) for arm, phases in found.items()}
    longest = max(totals.values())
    if longest == 0:
        return '<p class="note">No run recorded its phases.</p>'
    bars = "\n".join(
        f'<div class="timed"><span>{escape(arm_label(arm))}</span>'
        f'<div class="line"><div class="stack" style="width: {80 * totals[arm] / longest:.2f}%">'
        f"{_parts(phases)}</div>"
        f"<span>{format_seconds(totals[arm]) if phases else 'not recorded'}</span></div></div>"
        for arm, phases in found.items()
    )
    used = [phase for phase in PHASES if any(phase in phases for phases in found.values())]
    key = "".join(
        f'<span><i style="background: {PHASE_COLOURS[phase]}"></i>'
        f"<b>{phase}</b> {escape(PHASES[phase])}</span>"
        for phase in used
    )
    return f'{bars}\n<p class="key">{key}</p>\n<p class="note">{escape(NOTE)}</p>'


def _parts(phases: dict[str, float]) -> str:
    whole = sum(phases.values())
    return "".join(
        f'<i style="width: {100 * seconds / whole:.2f}%; background: {PHASE_COLOURS[phase]}" '
        f'title="{phase}: {format_seconds(seconds)}, {100 * seconds / whole:.1f} %"></i>'
        for phase, seconds in phases.items()
    )
