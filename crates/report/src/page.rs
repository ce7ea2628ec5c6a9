//! The parts that the pages of all reports share.

use super::escape::escaped;

const STYLE: &str = include_str!("style.css");

/// Returns a whole page. `header` and `main` are HTML and follow title and date.
pub(super) fn document(title: &str, started: &str, header: &str, main: &str) -> String {
    let (title, started) = (escaped(title), escaped(started));
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{title}</h1>\n<p class=\"muted\">{started}</p>\n{header}</header>\n\
         <main>\n{main}</main>\n</body>\n</html>\n"
    )
}

/// Returns an SVG document as an element of a page, with a text alternative.
pub(super) fn inline(drawing: &str, caption: &str) -> String {
    // Inline SVG needs no name space; without it the page contains nothing that looks like a link.
    let drawing = drawing.replacen(" xmlns=\"http://www.w3.org/2000/svg\"", "", 1);
    let label = format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(caption));
    drawing.replacen("<svg ", &label, 1)
}

/// Returns a card with names and values.
pub(super) fn fact_card(name: &str, facts: &[(String, String)]) -> String {
    let pair = |(name, value): &(String, String)| {
        format!("<dt>{}</dt><dd>{}</dd>\n", escaped(name), escaped(value))
    };
    let pairs: String = facts.iter().map(pair).collect();
    let name = escaped(name);
    format!("<section class=\"card\">\n<h3>{name}</h3>\n<dl>\n{pairs}</dl>\n</section>\n")
}

/// Returns the commands that repeat a run, with a heading.
pub(super) fn commands(commands: &[String]) -> String {
    if commands.is_empty() {
        return String::new();
    }
    let lines = escaped(&commands.join("\n"));
    format!("<h2>To repeat it</h2>\n<pre class=\"card\"><code>{lines}</code></pre>\n")
}

/// Returns a list of texts.
pub(super) fn list(items: &[String]) -> String {
    let items: String = items.iter().map(|item| format!("<li>{}</li>\n", escaped(item))).collect();
    format!("<ul>\n{items}</ul>\n")
}
