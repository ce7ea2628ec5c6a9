//! The trees of words that lead to files' contents: following, linking and clearing them.

pub(crate) mod clear;
pub(crate) mod heads;
pub(crate) mod link;
pub(crate) mod walk;
