//! How racks reach each other: the Fabric trait and its providers.
