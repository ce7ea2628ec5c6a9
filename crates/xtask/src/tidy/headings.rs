//! The anchors that GitHub gives the headings of a document: the text in lower case, without
//! punctuation, with `-` for each space. An anchor that is taken gets `-1`, `-2` and so on.

use std::collections::BTreeMap;

/// The anchors of all headings of a document in Markdown, in its order.
pub(super) fn anchors(document: &str) -> Vec<String> {
    let mut uses = BTreeMap::<String, usize>::new();
    let numbered = |heading| {
        let anchor = anchor(heading);
        let earlier = uses.entry(anchor.clone()).or_default();
        *earlier += 1;
        if *earlier == 1 { anchor } else { format!("{anchor}-{}", *earlier - 1) }
    };
    headings(document).map(numbered).collect()
}

/// The texts of the headings. A `#` within a fenced block begins a comment.
fn headings(document: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    document.lines().filter_map(move |line| {
        is_code ^= line.trim_start().starts_with("```");
        let text = line.trim_start_matches('#');
        let is_heading = (1..=6).contains(&(line.len() - text.len())) && text.starts_with(' ');
        (is_heading && !is_code).then(|| text.trim())
    })
}

fn anchor(heading: &str) -> String {
    let kept = |c: char| match c {
        ' ' => Some('-'),
        c => (c.is_alphanumeric() || "-_".contains(c)).then_some(c),
    };
    without_targets(heading).to_lowercase().chars().filter_map(kept).collect()
}

/// The heading with each link replaced by its text.
fn without_targets(heading: &str) -> String {
    let mut parts = heading.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, after)| after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anchors_are_those_of_github() {
        let document = "# A page\n\n## Requests: `DECR`, sizes & errors\n### What isn't — yet\n\
                        ## [Swaps](swap.md#a) of a_page\n#no heading\n####### none\n## A page\n";
        let found = anchors(document);
        let expected = [
            "a-page",
            "requests-decr-sizes--errors",
            "what-isnt--yet",
            "swaps-of-a_page",
            "a-page-1",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_comment_in_code_is_no_heading() {
        assert_eq!(anchors("```sh\n# not this\n```\n# This\n  ```\n# nor this\n  ```\n"), ["this"]);
    }
}
