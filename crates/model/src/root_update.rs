use crate::GlobalAddr;

/// The result of a request to set a root to a value if it has another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootUpdate {
    /// The root's address after the request; `None` if there is no such root.
    pub addr: Option<GlobalAddr>,
    /// Whether this request set it.
    pub changed: bool,
}
