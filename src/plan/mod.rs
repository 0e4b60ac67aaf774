//! The plan: what each card holds and what streams over which link.
