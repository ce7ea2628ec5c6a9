//! Rings and call cells between the clients of a rack and its daemon.
