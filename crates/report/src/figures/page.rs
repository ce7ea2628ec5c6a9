//! The HTML page of the figures.

use super::{Drawing, Figure, FiguresRun, Panel, Statement, Verdict};
use crate::escape::escaped;
use crate::page::{commands, document, fact_card, inline, list};
use crate::plot::number;
use rackpool_output::numbers::counted;

/// Returns the page. `drawings` has the drawings of each figure's panels.
pub(super) fn page(run: &FiguresRun, drawings: &[Vec<Drawing>]) -> String {
    let figures: String = run
        .figures
        .iter()
        .zip(drawings)
        .map(|(figure, drawings)| section(figure, drawings))
        .collect();
    let main = format!(
        "<h2>The paper and this machine</h2>\n{}{figures}{}{}",
        summary(&run.figures),
        commands(&run.commands),
        notes(&run.notes, "<h2>Notes</h2>\n"),
    );
    document(&run.title, &run.started, &machine(run), &main)
}

fn machine(run: &FiguresRun) -> String {
    if run.machine.is_empty() {
        return String::new();
    }
    format!("<div class=\"facts tiles\">\n{}</div>\n", fact_card("Machine", &run.machine))
}

/// Returns the number of statements that agree, that do not, and that can't be tested.
fn counts<'a>(statements: impl Iterator<Item = &'a Statement> + Clone) -> [usize; 3] {
    [Verdict::Agrees, Verdict::Differs, Verdict::Untestable]
        .map(|verdict| statements.clone().filter(|one| one.verdict == verdict).count())
}

fn summary(figures: &[Figure]) -> String {
    let rows: String = figures.iter().map(summary_row).collect();
    let [agree, differ, untestable] = counts(figures.iter().flat_map(|figure| &figure.statements));
    let all = counted((agree + differ + untestable) as u64, "statement", "statements");
    format!(
        "<p>Of {all} of the paper, {agree} agree with the measurement here, {differ} do not, and \
         {untestable} can't be tested on this machine.</p>\n\
         <div class=\"card wide\">\n<table class=\"plain\">\n<thead><tr>\
         <th scope=\"col\">Figure</th><th scope=\"col\">Statements that agree</th>\
         <th scope=\"col\">that do not</th><th scope=\"col\">not testable here</th></tr></thead>\n\
         <tbody>\n{rows}</tbody>\n</table>\n</div>\n"
    )
}

fn summary_row(figure: &Figure) -> String {
    let [agree, differ, untestable] = counts(figure.statements.iter());
    let class = if differ > 0 { " class=\"no\"" } else { "" };
    format!(
        "<tr><th scope=\"row\">Figure {}<small>{}</small></th><td>{agree}</td>\
         <td{class}>{differ}</td><td>{untestable}</td></tr>\n",
        escaped(&figure.id),
        escaped(&figure.title)
    )
}

fn section(figure: &Figure, drawings: &[Drawing]) -> String {
    let panels: String = drawings.iter().map(drawing).collect();
    let panels = wrapped(&panels, "<div class=\"panels\">\n", "</div>\n");
    let tables: String = figure.panels.iter().map(values).collect();
    format!(
        "<h2>Figure {}: {}</h2>\n<p>{}</p>\n{panels}{tables}{}{}",
        escaped(&figure.id),
        escaped(&figure.title),
        escaped(&figure.setting),
        statements(&figure.statements),
        notes(&figure.notes, ""),
    )
}

fn drawing(drawing: &Drawing) -> String {
    let class = if drawing.is_wide { "card whole" } else { "card" };
    format!("<figure class=\"{class}\">\n{}</figure>\n", inline(&drawing.svg, &drawing.caption))
}

/// Returns the table of a panel's values, with three significant digits.
fn values(panel: &Panel) -> String {
    let names =
        std::iter::once(&panel.x_name).chain(panel.series.iter().map(|series| &series.name));
    let heads: String =
        names.map(|name| format!("<th scope=\"col\">{}</th>", escaped(name))).collect();
    let row = |(place, label): (usize, &String)| {
        let cells = panel.series.iter().map(|series| {
            let value = series.values.get(place).copied().flatten();
            format!("<td>{}</td>", value.map_or_else(|| "-".to_owned(), number))
        });
        let cells: String = cells.collect();
        format!("<tr><th scope=\"row\">{}</th>{cells}</tr>\n", escaped(label))
    };
    let rows: String = panel.x.iter().enumerate().map(row).collect();
    format!(
        "<div class=\"card wide\">\n<table class=\"plain values\">\n<caption>{}: {}</caption>\n\
         <thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n</div>\n",
        escaped(&panel.title),
        escaped(&panel.y_name)
    )
}

fn statements(statements: &[Statement]) -> String {
    let rows: String = statements.iter().map(statement).collect();
    let before = "<div class=\"card wide\">\n<table class=\"plain statements\">\n<thead><tr>\
                  <th scope=\"col\">The paper</th><th scope=\"col\">Here</th>\
                  <th scope=\"col\" class=\"agrees\">Agrees</th></tr></thead>\n";
    wrapped(&rows, before, "</table>\n</div>\n")
}

fn statement(statement: &Statement) -> String {
    let (class, agrees) = match statement.verdict {
        Verdict::Agrees => ("yes", "yes"),
        Verdict::Differs => ("no", "no"),
        Verdict::Untestable => ("untestable", "not testable"),
    };
    let cause = statement.cause.as_ref().map(|cause| {
        format!("<tr class=\"cause\"><td colspan=\"3\">Cause: {}</td></tr>\n", escaped(cause))
    });
    format!(
        "<tbody>\n<tr><td>{}</td><td>{}</td><td class=\"{class}\">{agrees}</td></tr>\n{}</tbody>\n",
        escaped(&statement.paper),
        escaped(&statement.measured),
        cause.unwrap_or_default()
    )
}

fn notes(notes: &[String], heading: &str) -> String {
    if notes.is_empty() { String::new() } else { format!("{heading}{}", list(notes)) }
}

/// Returns the text between `before` and `after`; nothing if there is no text.
fn wrapped(text: &str, before: &str, after: &str) -> String {
    if text.is_empty() { String::new() } else { format!("{before}{text}{after}") }
}
