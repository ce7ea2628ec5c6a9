//! Process tests of rackpool: real daemons, real clients, real kills.
