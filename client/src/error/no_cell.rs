/// The reason why no more objects can be owned or pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoCell {
    /// All cells of the client's array are in use.
    #[error(
        "this program has {most} objects that it owns, or pins: free, publish or disown some objects, or drop some pins"
    )]
    AllInUse {
        /// The most objects that a program can own, and the most pins that it can have.
        most: usize,
    },
    /// The file system of the pool has no room for the notes.
    #[error(
        "the file system of the pool has no room for the notes of more objects: make it larger, or free some objects"
    )]
    NoRoom,
}
