//! The GGUF file format: header, metadata, tensor table, split files, mapping.
