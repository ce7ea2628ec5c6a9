//! Every package has its place in the code map of `ARCHITECTURE.md`.

use super::Violation;
use crate::tree::{Member, Tree};

const PATH: &str = "ARCHITECTURE.md";

pub(super) fn check(tree: &Tree, members: &[Member]) -> Vec<Violation> {
    let Some(text) = tree.text(PATH) else {
        return vec![Violation::new(PATH, 1, "missing: write the map of the code")];
    };
    members
        .iter()
        .filter(|member| !mentions(text, &member.folder))
        .map(|member| {
            let folder = &member.folder;
            let mend = format!("does not mention `{folder}`: say what is there in the code map");
            Violation::new(PATH, 1, mend)
        })
        .collect()
}

/// Returns true if `text` contains `folder` as a path: `crates/ring`, or `client/` and `client` in
/// backticks (a plain word would match in any sentence).
fn mentions(text: &str, folder: &str) -> bool {
    text.match_indices(folder).any(|(at, _)| {
        let (before, after) = (text[..at].chars().last(), text[at + folder.len()..].chars().next());
        let in_name = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '/');
        let ends =
            folder.contains('/') && !after.is_some_and(|c| c.is_alphanumeric() || "-_".contains(c));
        let is_path = after == Some('/') || (before == Some('`') && after == Some('`'));
        !before.is_some_and(in_name) && (ends || is_path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;

    fn member(folder: &str) -> Member {
        let manifest = Manifest::parse("[package]\nname = \"rackpool-x\"\n").unwrap();
        Member { folder: folder.into(), manifest }
    }

    #[test]
    fn every_member_must_be_on_the_map() {
        let text = "`crates/fabric-verbs` is RDMA, `client/` the library, `daemon` a shell.\n\
                    The metaserver serves.\n";
        let tree = Tree::of(&[(PATH, text)]);
        let folders = ["crates/fabric", "crates/fabric-verbs", "client", "daemon", "metaserver"];
        let members: Vec<Member> = folders.map(member).into();
        let found = check(&tree, &members);
        let missing =
            |folder: &str| found.iter().any(|v| v.message.contains(&format!("`{folder}`")));
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(missing("crates/fabric") && missing("metaserver"));
    }

    #[test]
    fn the_map_must_exist() {
        assert_eq!(check(&Tree::of(&[]), &[]).len(), 1);
    }
}
