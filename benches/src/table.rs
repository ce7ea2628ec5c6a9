//! Figures beside their limits.

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

    /// A figure that must not be above its limit.
    pub fn at_most(&mut self, name: &str, figure: f64, limit: f64, unit: &str, detail: &str) {
        self.line(name, figure, limit, unit, detail, figure <= limit, "<=");
    }

    /// A figure that must not be below its limit.
    pub fn at_least(&mut self, name: &str, figure: f64, limit: f64, unit: &str, detail: &str) {
        self.line(name, figure, limit, unit, detail, figure >= limit, ">=");
    }

    /// A figure without a limit.
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

    /// A comparison that can't be made here, and what it would take. Nobody may take it for a limit
    /// that is met.
    pub fn not_measured(&mut self, reason: &str) {
        self.unmeasured += 1;
        println!("  NOT MEASURED: {reason}");
    }

    /// How many limits were missed.
    #[must_use]
    pub const fn missed(&self) -> usize {
        self.missed
    }

    /// How many comparisons were not made.
    #[must_use]
    pub const fn unmeasured(&self) -> usize {
        self.unmeasured
    }
}
