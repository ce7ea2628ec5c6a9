//! The commands of `rackpool`.

pub(crate) mod agent;
pub(crate) mod audit;
pub(crate) mod cast;
pub(crate) mod credentials;
pub(crate) mod dca;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod group;
pub(crate) mod heat;
pub(crate) mod hot_pages;
mod json;
pub(crate) mod numa;
pub(crate) mod objects;
pub(crate) mod root;
mod roots;
pub(crate) mod server;
mod signals;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod top;
pub(crate) mod up;
pub(crate) mod ycsb;
