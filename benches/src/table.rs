//! Measurements beside their limits.

/// Collects the lines of a run.
#[derive(Debug, Default)]
pub struct Table {
    missed: usize,
    unmeasured: usize,
}

impl Table {
    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        println!("\n{title}");
        println!("  {:<46} {:>14} {:>14}  detail", "figure", "measured", "limit");
    }

    /// Prints a measurement that must not exceed its limit.
    pub fn at_most(&mut self, name: &str, figure: f64, limit: f64, unit: &str, detail: &str) {
        self.line(name, figure, limit, unit, detail, figure <= limit, "<=");
    }

    /// Prints a measurement that must not fall below its limit.
    pub fn at_least(&mut self, name: &str, figure: f64, limit: f64, unit: &str, detail: &str) {
        self.line(name, figure, limit, unit, detail, figure >= limit, ">=");
    }

    /// Prints a measurement without a limit.
    pub fn figure(&mut self, name: &str, figure: f64, unit: &str, detail: &str) {
        println!("  {name:<46} {:>14} {:>14}  {detail}", format!("{figure:.2} {unit}"), "-");
    }

    #[expect(clippy::too_many_arguments, reason = "the columns of the line")]
    fn line(
        &mut self,
        name: &str,
        figure: f64,
        limit: f64,
        unit: &str,
        detail: &str,
        met: bool,
        sign: &str,
    ) {
        self.missed += usize::from(!met);
        let verdict = if met { "" } else { "  MISSED" };
        println!(
            "  {name:<46} {:>14} {:>14}  {detail}{verdict}",
            format!("{figure:.2} {unit}"),
            format!("{sign} {limit} {unit}")
        );
    }

    /// Prints a comparison that can't be made here, and the reason. It counts as unmeasured, so it
    /// can't be taken for a limit that is met.
    pub fn not_measured(&mut self, reason: &str) {
        self.unmeasured += 1;
        println!("  NOT MEASURED: {reason}");
    }

    /// The number of missed limits.
    #[must_use]
    pub const fn missed(&self) -> usize {
        self.missed
    }

    /// The number of comparisons that were not made.
    #[must_use]
    pub const fn unmeasured(&self) -> usize {
        self.unmeasured
    }
}
