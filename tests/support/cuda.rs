//! What all tests on GPUs share: whether there is one, where its kernels come from, and how far results may be from the
//! exact ones.

use aqueduct::card::cuda::{CompilerSettings, CudaDevice, has_driver, probe};

/// The GPUs. Empty, with the reason printed, on a machine without one; a machine that has one must run its tests.
///
/// # Panics
/// When the driver or a device node of a GPU is there and no GPU can be used.
pub fn devices() -> Vec<CudaDevice> {
    let found = probe();
    if let Ok(devices) = &found
        && !devices.is_empty()
    {
        return devices.clone();
    }
    let reason = found.err().map_or_else(|| "there is no NVIDIA GPU".to_owned(), |error| error.to_string());
    let nodes =
        ["/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg"].into_iter().find(|node| std::path::Path::new(node).exists());
    assert!(
        !has_driver() && nodes.is_none(),
        "skipped on a machine with an NVIDIA driver or GPU ({nodes:?}): {reason}"
    );
    println!("skipped: {reason}");
    Vec::new()
}

/// Kernels from `AQUEDUCT_KERNELS` (a cache), by `AQUEDUCT_NVRTC`, or those of the earlier capability
/// `AQUEDUCT_KERNELS_FOR`.
pub fn compiler() -> CompilerSettings {
    let path = |name: &str| std::env::var_os(name).map(Into::into);
    CompilerSettings {
        nvrtc: path("AQUEDUCT_NVRTC"),
        cache: path("AQUEDUCT_KERNELS"),
        packaged: path("AQUEDUCT_KERNEL_PTX"),
        kernels_for: std::env::var_os("AQUEDUCT_KERNELS_FOR")
            .map(|arch| arch.to_str().and_then(|arch| arch.parse().ok()).expect("a capability such as 86")),
    }
}

/// Whether regions stand between guard bands.
pub fn guarded() -> bool {
    std::env::var_os("AQUEDUCT_GUARD_REGIONS").is_some()
}

/// Prints how far something is from the exact result beside how far it may be, and fails where it is farther.
pub fn near(what: &str, off: f64, limit: f64) {
    println!("error {off:.2e} limit {limit:.1e} share {:.2} {what}", off / limit);
    assert!(off <= limit, "{what}: {off:.2e} from the exact result, {limit:.1e} is allowed");
}
