//! Block formats: exact dequantisation, codebooks and dot products.
