//! Rack memory: files, mappings, layouts and the local access path.
