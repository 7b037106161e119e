//! Meter of a session's model usage, held against its budget. Pure.
//!
//! Agents count a turn from its beginning each time, and not every event has all numbers: a number that one omits was
//! in another.

use agents::ModelPrice;
use ipc_protocol::{Budget, BudgetAction, BudgetExceeded, BudgetKind, CostSource, Event, Usage, Usd};

use crate::description::TurnUsage;

#[derive(Debug, Default)]
pub(crate) struct UsageMeter {
    budget: Budget,
    /// Usage of earlier turns.
    previous_turns: Usage,
    /// Usage of the current turn.
    current_turn: TurnUsage,
    /// Budgets that were reported as used up.
    reported: Vec<BudgetKind>,
    /// The first budget used up whose action is more than a warning: no prompt is accepted since.
    exhausted: Option<BudgetExceeded>,
}

impl UsageMeter {
    /// Creates the meter of a session with this usage in earlier incarnations.
    pub(crate) fn new(budget: Budget, past: Usage) -> Self {
        Self::from_total(budget, past, TurnUsage::default())
    }

    /// Creates the meter of a session with this total usage, of which `now` belongs to a turn that may continue.
    pub(crate) fn from_total(budget: Budget, total: Usage, now: TurnUsage) -> Self {
        let mut meter = Self { budget, previous_turns: less(total, now.usage), current_turn: now, ..Self::default() };
        // Budgets used up by then were reported then.
        meter.judge();
        meter
    }

    /// Total usage.
    pub(crate) fn total(&self) -> Usage {
        add(self.previous_turns, self.current_turn.usage)
    }

    /// Usage of the current turn.
    pub(crate) fn turn(&self) -> TurnUsage {
        self.current_turn
    }

    /// Budget because of which no prompt is accepted any more.
    pub(crate) fn exhausted(&self) -> Option<BudgetExceeded> {
        self.exhausted
    }

    /// Completes the usage in an event of a turn with its cost by `price`, unless the agent tells the cost itself.
    pub(crate) fn price(&self, turn: u64, event: &mut Event, price: &ModelPrice) {
        let usage = match event {
            Event::Usage(usage) => usage,
            Event::Complete { usage: Some(usage), .. } => usage,
            _ => return,
        };
        let known = if turn == self.current_turn.turn { self.current_turn.usage } else { Usage::default() };
        let is_told = known.cost_usd.is_some() && known.cost_source != Some(CostSource::Prices);
        if usage.cost_usd.is_some() || is_told {
            return;
        }
        // What this event leaves out was in another.
        let so_far = Usage {
            input_tokens: usage.input_tokens.max(known.input_tokens),
            output_tokens: usage.output_tokens.max(known.output_tokens),
            cache_read_tokens: usage.cache_read_tokens.max(known.cache_read_tokens),
            cache_write_tokens: usage.cache_write_tokens.max(known.cache_write_tokens),
            ..Usage::default()
        };
        if let Some(cost) = price.cost(&so_far) {
            (usage.cost_usd, usage.cost_source) = (Some(cost), Some(CostSource::Prices));
        }
    }

    /// Applies an event of a turn. Returns the budgets that it used up, each reported once, or `None` for an event
    /// without usage.
    pub(crate) fn record(&mut self, turn: u64, event: &Event) -> Option<Vec<BudgetExceeded>> {
        let usage = match event {
            Event::Usage(usage) => usage,
            Event::Complete { usage: Some(usage), .. } => usage,
            _ => return None,
        };
        if turn != self.current_turn.turn {
            self.previous_turns = self.total();
            self.current_turn = TurnUsage { turn, usage: Usage::default() };
        }
        let Usage { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, cost_usd, cost_source } =
            **usage;
        let now = &mut self.current_turn.usage;
        for (said, known) in [
            (input_tokens, &mut now.input_tokens),
            (output_tokens, &mut now.output_tokens),
            (cache_read_tokens, &mut now.cache_read_tokens),
            (cache_write_tokens, &mut now.cache_write_tokens),
        ] {
            // Usage never decreases.
            *known = said.max(*known);
        }
        let source = cost_source.unwrap_or(CostSource::Agent);
        // The agent's own cost takes the place of one by prices; else it never decreases.
        let is_better = source == CostSource::Agent && now.cost_source == Some(CostSource::Prices);
        let least = if is_better { 0.0 } else { now.cost_usd.unwrap_or_default() };
        if let Some(cost) = cost_usd.filter(|cost| cost.is_finite() && *cost >= least) {
            (now.cost_usd, now.cost_source) = (Some(cost), Some(source));
        }
        Some(self.judge())
    }

    fn judge(&mut self) -> Vec<BudgetExceeded> {
        let total = self.total();
        let (input, output) = (total.input_tokens.unwrap_or_default(), total.output_tokens.unwrap_or_default());
        let cost = total.cost_usd.and_then(Usd::from_dollars).unwrap_or_default();
        let budget = self.budget;
        let mut passed = Vec::new();
        for (kind, value, measured) in [
            (BudgetKind::InputTokens, budget.input_tokens, input),
            (BudgetKind::OutputTokens, budget.output_tokens, output),
            (BudgetKind::TotalTokens, budget.total_tokens, input.saturating_add(output)),
            (BudgetKind::Cost, budget.cost_usd.map(Usd::millionths), cost.millionths()),
        ] {
            if let Some(value) = value
                && measured >= value
                && !self.reported.contains(&kind)
            {
                self.reported.push(kind);
                let exceeded = BudgetExceeded { budget: kind, value, measured, action: budget.action };
                if budget.action != BudgetAction::Warn {
                    self.exhausted.get_or_insert(exceeded);
                }
                passed.push(exceeded);
            }
        }
        passed
    }
}

/// Subtracts `b`, which is a part of `a`.
fn less(a: Usage, b: Usage) -> Usage {
    fn tokens(a: Option<u64>, b: Option<u64>) -> Option<u64> {
        a.map(|a| a.saturating_sub(b.unwrap_or_default()))
    }
    Usage {
        input_tokens: tokens(a.input_tokens, b.input_tokens),
        output_tokens: tokens(a.output_tokens, b.output_tokens),
        cache_read_tokens: tokens(a.cache_read_tokens, b.cache_read_tokens),
        cache_write_tokens: tokens(a.cache_write_tokens, b.cache_write_tokens),
        cost_usd: a.cost_usd.map(|cost| (cost - b.cost_usd.unwrap_or_default()).max(0.0)),
        cost_source: a.cost_source,
    }
}

fn add(a: Usage, b: Usage) -> Usage {
    fn tokens(a: Option<u64>, b: Option<u64>) -> Option<u64> {
        a.map_or(b, |a| Some(a.saturating_add(b.unwrap_or_default())))
    }
    Usage {
        input_tokens: tokens(a.input_tokens, b.input_tokens),
        output_tokens: tokens(a.output_tokens, b.output_tokens),
        cache_read_tokens: tokens(a.cache_read_tokens, b.cache_read_tokens),
        cache_write_tokens: tokens(a.cache_write_tokens, b.cache_write_tokens),
        cost_usd: a.cost_usd.map_or(b.cost_usd, |cost| Some(cost + b.cost_usd.unwrap_or_default())),
        // A sum is as good as its worst part.
        cost_source: [a.cost_source, b.cost_source].into_iter().flatten().max_by_key(|it| *it == CostSource::Prices),
    }
}

#[cfg(test)]
mod tests {
    use ipc_protocol::StopReason;
    use proptest::prelude::*;

    use super::*;

    fn usage(input: Option<u64>, output: Option<u64>, cost: Option<f64>) -> Event {
        Event::Usage(Box::new(Usage { input_tokens: input, output_tokens: output, cost_usd: cost, ..Usage::default() }))
    }

    #[test]
    fn a_turn_counts_from_its_beginning_and_turns_add_up() {
        let mut meter = UsageMeter::new(Budget { total_tokens: Some(100), ..Budget::default() }, Usage::default());
        assert_eq!(meter.record(1, &Event::SessionIdle {}), None);
        assert_eq!(meter.record(1, &usage(Some(30), None, None)), Some(vec![]));
        assert_eq!(meter.record(1, &usage(Some(40), Some(5), None)), Some(vec![]));
        // The end of a turn says it once more, and may leave something out.
        let said = Usage { input_tokens: Some(40), cost_usd: Some(0.25), ..Usage::default() };
        let end = Event::Complete { stop_reason: StopReason::EndTurn, usage: Some(Box::new(said)) };
        assert_eq!(meter.record(1, &end), Some(vec![]));
        assert_eq!(meter.exhausted(), None);
        let exceeded = BudgetExceeded {
            budget: BudgetKind::TotalTokens,
            value: 100,
            measured: 105,
            action: BudgetAction::EndTurn,
        };
        assert_eq!(meter.record(2, &usage(Some(50), Some(10), None)), Some(vec![exceeded]));
        assert_eq!(meter.record(2, &usage(Some(60), Some(10), Some(0.5))), Some(vec![]), "once");
        assert_eq!(meter.exhausted(), Some(exceeded));
        let total = meter.total();
        assert_eq!((total.input_tokens, total.output_tokens, total.cost_usd), (Some(100), Some(15), Some(0.75)));
        assert_eq!(total.cache_read_tokens, None, "nobody said");
        // Another host goes on in the middle of the turn, which is told from its beginning.
        let mut next =
            UsageMeter::from_total(Budget { total_tokens: Some(200), ..Budget::default() }, total, meter.turn());
        assert_eq!(next.total(), total);
        assert_eq!(next.record(2, &usage(Some(70), None, Some(0.75))), Some(vec![]));
        let total = next.total();
        assert_eq!((total.input_tokens, total.output_tokens, total.cost_usd), (Some(110), Some(15), Some(1.0)));
        let total = meter.total();
        // It goes on in another life.
        let mut next = UsageMeter::new(Budget { total_tokens: Some(100), ..Budget::default() }, total);
        assert!(next.exhausted().is_some());
        assert_eq!(next.record(1, &usage(Some(1), None, None)), Some(vec![]), "it was told");
    }

    /// A price of 2 dollars for a million tokens read, and 10 for those written.
    fn price() -> ModelPrice {
        let table = agents::PriceTable::parse("[models.m]\ninput = 2\noutput = 10\n").expect("prices");
        *table.price("m").expect("a price")
    }

    fn cost(event: &Event) -> Option<(f64, CostSource)> {
        let usage = match event {
            Event::Usage(usage) => usage,
            Event::Complete { usage: Some(usage), .. } => usage,
            _ => return None,
        };
        Some((usage.cost_usd?, usage.cost_source.expect("a source")))
    }

    #[test]
    fn prices_complete_what_an_agent_leaves_out() {
        let mut meter = UsageMeter::new(Budget::default(), Usage::default());
        let told = |meter: &mut UsageMeter, turn: u64, mut event: Event| {
            meter.price(turn, &mut event, &price());
            meter.record(turn, &event);
            cost(&event)
        };
        let by_prices = |cost: f64| Some((cost, CostSource::Prices));
        assert_eq!(told(&mut meter, 1, usage(Some(1_000_000), None, None)), None, "half of it is not known");
        assert_eq!(told(&mut meter, 1, usage(None, Some(100_000), None)), by_prices(3.0), "with the input of before");
        let said = Usage { input_tokens: Some(1_500_000), ..Usage::default() };
        let end = Event::Complete { stop_reason: StopReason::EndTurn, usage: Some(Box::new(said)) };
        assert_eq!(told(&mut meter, 1, end), by_prices(4.0));
        let none = Event::Complete { stop_reason: StopReason::EndTurn, usage: None };
        assert_eq!(told(&mut meter, 2, none), None, "nothing is told");
        assert_eq!(told(&mut meter, 2, usage(Some(1_000_000), Some(0), None)), by_prices(2.0), "of this turn alone");
        assert_eq!(meter.total().cost_usd, Some(6.0));
        assert_eq!(meter.total().cost_source, Some(CostSource::Prices));
    }

    #[test]
    fn a_price_changes_nothing_that_an_agent_tells() {
        let mut meter = UsageMeter::new(Budget::default(), Usage::default());
        let mut said = usage(Some(1_000_000), Some(100_000), Some(0.5));
        let before = said.clone();
        meter.price(1, &mut said, &price());
        assert_eq!(said, before);
        meter.record(1, &said);
        let mut later = usage(Some(2_000_000), Some(100_000), None);
        meter.price(1, &mut later, &price());
        assert_eq!(cost(&later), None, "it tells it in other events");
        // What it tells at the end takes the place of what was computed.
        let mut computed = usage(Some(1_000_000), Some(100_000), None);
        meter.price(2, &mut computed, &price());
        meter.record(2, &computed);
        assert_eq!(cost(&computed), Some((3.0, CostSource::Prices)));
        meter.record(2, &usage(Some(1_000_000), Some(100_000), Some(0.25)));
        let total = meter.total();
        assert_eq!((total.cost_usd, total.cost_source), (Some(0.75), Some(CostSource::Agent)));
    }

    #[test]
    fn money_and_a_warning() {
        let budget = Budget { cost_usd: Usd::from_dollars(0.3), action: BudgetAction::Warn, ..Budget::default() };
        let mut meter = UsageMeter::new(budget, Usage::default());
        assert_eq!(meter.record(1, &usage(None, None, Some(0.1))), Some(vec![]));
        // Sums of floating numbers are a little off; money is not.
        let passed = meter.record(2, &usage(None, None, Some(0.2))).expect("usage");
        assert_eq!((passed.len(), passed[0].measured, meter.exhausted()), (1, 300_000, None));
        meter.record(3, &usage(None, None, Some(f64::NAN)));
        assert_eq!(meter.total().cost_usd.map(|cost| (cost * 1e6).round()), Some(300_000.0));
    }

    proptest! {
        /// However usage is told, the sum is that of each turn's greatest, and a budget is told once, when it is used up.
        #[test]
        fn the_sum_is_that_of_the_turns(
            told in prop::collection::vec((1..5_u64, 0..50_u64, 0..50_u64), 0..40), allowed in 1..200_u64,
        ) {
            let mut told = told;
            told.sort_by_key(|(turn, ..)| *turn);
            let mut meter = UsageMeter::new(Budget { total_tokens: Some(allowed), ..Budget::default() }, Usage::default());
            let mut turns = [(0, 0); 5];
            let mut passed = 0;
            for (turn, input, output) in told {
                let place = &mut turns[usize::try_from(turn).expect("small")];
                *place = (place.0.max(input), place.1.max(output));
                let sum: u64 = turns.iter().map(|(input, output)| input + output).sum();
                passed += meter.record(turn, &usage(Some(input), Some(output), None)).expect("usage").len();
                prop_assert_eq!(passed, usize::from(sum >= allowed));
                let total = meter.total();
                prop_assert_eq!(total.input_tokens.unwrap_or(0) + total.output_tokens.unwrap_or(0), sum);
                prop_assert_eq!(meter.exhausted().is_some(), sum >= allowed);
            }
        }
    }
}
