//! What kernels are compiled for: a card's own machine code, or PTX that the driver compiles for a card of the same or
//! a later generation.

use std::fmt;

use super::device::CudaDevice;

/// The form of compiled kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Machine code of one architecture.
    Cubin,
    /// NVIDIA's portable assembly.
    Ptx,
}

/// A compute capability and the form in which its kernels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Compute capability, such as 86 for 8.6.
    pub arch: u32,
    /// Machine code, or PTX.
    pub form: Form,
}

/// The capabilities for which a release carries PTX, the best one for a card first.
pub const PACKAGED: [u32; 6] = [120, 90, 89, 86, 80, 75];

impl Target {
    /// Machine code for a card.
    pub fn cubin(arch: u32) -> Self {
        Self { arch, form: Form::Cubin }
    }

    /// PTX.
    pub fn ptx(arch: u32) -> Self {
        Self { arch, form: Form::Ptx }
    }

    /// Whether a card of capability `device` runs it. PTX runs on later cards, too; but Hopper's products exist there
    /// alone.
    pub fn runs_on(self, device: u32) -> bool {
        match (self.form, self.arch) {
            (Form::Cubin, arch) | (Form::Ptx, arch @ 90) => arch == device,
            (Form::Ptx, arch) => arch <= device,
        }
    }

    /// NVRTC's name of it.
    pub(super) fn architecture(self) -> String {
        // Hopper's own products exist for this very architecture only.
        format!("{self}{}", if self.arch == 90 { "a" } else { "" })
    }

    /// The file name's ending of what is made for it.
    pub(super) fn extension(self) -> &'static str {
        match self.form {
            Form::Cubin => "cubin",
            Form::Ptx => "ptx",
        }
    }

    /// Whether a driver of CUDA version `driver` loads what a compiler of version `compiler` made: of machine code all
    /// with the same or an earlier major version, of PTX none of a later minor version either.
    pub(super) fn loads(self, compiler: (u32, u32), driver: (u32, u32)) -> bool {
        match self.form {
            Form::Cubin => compiler.0 <= driver.0,
            Form::Ptx => compiler <= driver,
        }
    }

    /// The device as its kernels must see it: with the limits of this capability, whatever the device could do beyond.
    pub(super) fn limit(self, device: &CudaDevice) -> CudaDevice {
        let shared = device.shared.min(shared_limit(self.arch));
        CudaDevice { arch: self.arch, shared, ..device.clone() }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            Form::Cubin => write!(f, "sm_{}", self.arch),
            Form::Ptx => write!(f, "compute_{}", self.arch),
        }
    }
}

/// Bytes of shared memory that a block may ask for (CUDA C++ Programming Guide, 'Technical Specifications per Compute
/// Capability').
pub fn shared_limit(arch: u32) -> usize {
    1024 * match arch {
        75 => 64,
        80 | 87 => 163,
        86 | 89 | 120 => 99,
        _ => 227,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Bytes;

    #[test]
    fn ptx_runs_on_later_cards_and_machine_code_on_its_own() {
        let runs =
            |target: Target, devices: &[u32]| devices.iter().map(|arch| target.runs_on(*arch)).collect::<Vec<_>>();
        assert_eq!(runs(Target::ptx(86), &[75, 80, 86, 89, 90, 120]), [false, false, true, true, true, true]);
        assert_eq!(runs(Target::ptx(90), &[89, 90, 100, 120]), [false, true, false, false]);
        assert_eq!(runs(Target::cubin(86), &[80, 86, 89]), [false, true, false]);
        let best = |device| PACKAGED.into_iter().find(|arch| Target::ptx(*arch).runs_on(device));
        assert_eq!([75, 87, 89, 90, 100, 120, 121].map(best), [75, 86, 89, 90, 89, 120, 120].map(Some));
        assert_eq!(best(70), None);
    }

    #[test]
    fn ptx_must_not_be_newer_than_the_driver_to_the_minor_version() {
        for (compiler, driver, cubin, ptx) in [
            ((12, 8), (12, 0), true, false),
            ((12, 0), (12, 0), true, true),
            ((12, 9), (13, 0), true, true),
            ((13, 0), (12, 9), false, false),
            ((13, 5), (13, 0), true, false),
        ] {
            assert_eq!(Target::cubin(86).loads(compiler, driver), cubin, "{compiler:?} {driver:?}");
            assert_eq!(Target::ptx(86).loads(compiler, driver), ptx, "{compiler:?} {driver:?}");
        }
    }

    #[test]
    fn a_device_is_limited_to_what_the_capability_has() {
        let device = CudaDevice {
            ordinal: 0,
            name: "NVIDIA H200".to_owned(),
            uuid: String::new(),
            pci: String::new(),
            arch: 90,
            memory: Bytes(1 << 30),
            processors: 132,
            shared: 227 << 10,
        };
        let seen = Target::ptx(75).limit(&device);
        assert_eq!((seen.arch, seen.shared, seen.processors), (75, 64 << 10, 132));
        assert_eq!(Target::ptx(86).limit(&device).shared, 99 << 10);
        assert_eq!(Target::cubin(90).limit(&device), device);
    }
}
