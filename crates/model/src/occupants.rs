/// The uses of a frame that must end before the frame or its page may be used otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Occupants {
    /// Writers that entered while the page was live. The page is frozen; other writers log their
    /// lines.
    NotDirtyLogged,
    /// All writers.
    Writers,
    /// All users: the page is leaving.
    Everyone,
}
