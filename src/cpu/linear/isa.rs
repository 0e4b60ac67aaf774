//! Which instructions the kernels use.

use std::fmt;

/// An instruction set that this CPU has. Chosen once, by whoever runs the kernels; results do not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cpu) enum Kind {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// Plain Rust on any CPU; slow.
    pub const SCALAR: Self = Self(Kind::Scalar);

    /// The fastest one of this CPU.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c")
        {
            return Self(Kind::Avx2);
        }
        Self::SCALAR
    }

    /// AVX2 only comes out of [`Isa::best`], so its presence proves that the CPU has AVX2, FMA and F16C.
    pub(in crate::cpu) fn kind(self) -> Kind {
        self.0
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "AVX2",
        })
    }
}
