//! A hash table that lives in the pool.
