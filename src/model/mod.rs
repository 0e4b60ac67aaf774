//! Architectures as data: which tensors a model has and what is computed from them.
