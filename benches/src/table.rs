//! Measurements beside their limits.

/// What a run has measured so far; each line is printed as it is added.
#[derive(Debug, Default)]
pub struct Table {
    benchmark: &'static str,
    sections: Vec<Section>,
}

/// Figures that are measured in the same way.
#[derive(Debug)]
pub struct Section {
    /// The benchmark, by the name that chooses it.
    pub benchmark: &'static str,
    /// What is measured against what.
    pub title: String,
    /// The figures.
    pub lines: Vec<Line>,
}

/// One of several measurements that share a limit.
#[derive(Debug)]
pub struct Case {
    /// In what it differs from the others.
    pub name: String,
    /// The figure.
    pub figure: f64,
    /// What the figure was made of.
    pub detail: String,
}

/// A line of a section.
#[derive(Debug)]
pub enum Line {
    /// A figure.
    Figure {
        /// What was measured.
        name: String,
        /// The figure and its unit.
        measured: String,
        /// The limit, if there is one.
        limit: Option<String>,
        /// What the figure was made of.
        detail: String,
        /// Whether the limit was met.
        met: bool,
    },
    /// A comparison that can't be made here, and what it would take.
    NotMeasured(String),
}

impl Table {
    /// The sections that follow are of this benchmark.
    pub const fn benchmark(&mut self, name: &'static str) {
        self.benchmark = name;
    }

    /// Begins a section.
    pub fn section(&mut self, title: &str) {
        println!("\n{title}");
        println!("  {:<46} {:>14} {:>14}  detail", "figure", "measured", "limit");
        let (benchmark, title) = (self.benchmark, title.to_owned());
        self.sections.push(Section { benchmark, title, lines: Vec::new() });
    }

    /// Prints a measurement that must not exceed its limit.
    pub fn at_most(&mut self, name: &str, figure: f64, limit: f64, unit: &str, detail: &str) {
        let limit_text = with_unit(&format!("<= {limit}"), unit);
        self.line(name, figure, unit, Some(limit_text), detail, figure <= limit);
    }

    /// Prints measurements of several cases, none of which may exceed the limit, and keeps the
    /// largest of them.
    pub fn largest_at_most(&mut self, name: &str, cases: &[Case], limit: f64, unit: &str) {
        for Case { name, figure, detail } in cases {
            println!("    {name:<44} {:>14}  {detail}", with_unit(&format!("{figure:.2}"), unit));
        }
        let largest = cases.iter().max_by(|a, b| a.figure.total_cmp(&b.figure));
        if let Some(Case { name: case, figure, detail }) = largest {
            let name = format!("{name}, largest of {}", cases.len());
            self.at_most(&name, *figure, limit, unit, &format!("{case}: {detail}"));
        }
    }

    /// Prints a measurement that must not fall below its limit.
    pub fn at_least(&mut self, name: &str, figure: f64, limit: f64, unit: &str, detail: &str) {
        let limit_text = with_unit(&format!(">= {limit}"), unit);
        self.line(name, figure, unit, Some(limit_text), detail, figure >= limit);
    }

    /// Prints a measurement without a limit.
    pub fn figure(&mut self, name: &str, figure: f64, unit: &str, detail: &str) {
        self.line(name, figure, unit, None, detail, true);
    }

    fn line(
        &mut self,
        name: &str,
        figure: f64,
        unit: &str,
        limit: Option<String>,
        detail: &str,
        met: bool,
    ) {
        let measured = with_unit(&format!("{figure:.2}"), unit);
        let verdict = if met { "" } else { "  MISSED" };
        let shown = limit.as_deref().unwrap_or("-");
        println!("  {name:<46} {measured:>14} {shown:>14}  {detail}{verdict}");
        let (name, detail) = (name.to_owned(), detail.to_owned());
        self.add(Line::Figure { name, measured, limit, detail, met });
    }

    /// Prints a comparison that can't be made here, and the reason. It counts as unmeasured, so it
    /// can't be taken for a limit that is met.
    pub fn not_measured(&mut self, reason: &str) {
        println!("  NOT MEASURED: {reason}");
        self.add(Line::NotMeasured(reason.to_owned()));
    }

    fn add(&mut self, line: Line) {
        if self.sections.is_empty() {
            self.section("");
        }
        if let Some(section) = self.sections.last_mut() {
            section.lines.push(line);
        }
    }

    /// All sections of the run.
    #[must_use]
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    fn count(&self, counts: impl Fn(&Line) -> bool) -> usize {
        self.sections.iter().flat_map(|section| &section.lines).filter(|line| counts(line)).count()
    }

    /// The number of missed limits.
    #[must_use]
    pub fn missed(&self) -> usize {
        self.count(|line| matches!(line, Line::Figure { met: false, .. }))
    }

    /// The number of comparisons that were not made.
    #[must_use]
    pub fn unmeasured(&self) -> usize {
        self.count(|line| matches!(line, Line::NotMeasured(_)))
    }
}

fn with_unit(figure: &str, unit: &str) -> String {
    format!("{figure} {unit}").trim_end().to_owned()
}
