//! What the operating system says about this machine, for the parts that a topology file leaves out.

use std::collections::BTreeSet;

use crate::units::Bytes;

/// Memory and cores of the machine at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Memory that programs can have now, within the container's limit where there is one.
    pub memory: Bytes,
    /// Cores, counted once where they run two threads, within the process's CPU mask.
    pub workers: u32,
}

impl HostFacts {
    /// Asks the operating system. What it does not tell is taken to be small: 4 GiB, one core.
    pub fn read() -> Self {
        let free = read("/proc/meminfo").and_then(|text| available(&text)).unwrap_or(Bytes(4 << 30));
        let limit = read("/sys/fs/cgroup/memory.max").and_then(|text| text.trim().parse().ok()).map(Bytes);
        let used = read("/sys/fs/cgroup/memory.current").and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let within = limit.map_or(free, |limit| Bytes(limit.0.saturating_sub(used)).min(free));
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = cores().map_or(allowed, |cores| cores.min(allowed));
        Self { memory: within, workers: u32::try_from(cores.max(1)).unwrap_or(1) }
    }
}

fn read(path: &str) -> Option<String> {
    fs_err::read_to_string(path).ok()
}

fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}

/// Cores of the machine: the distinct sets of CPUs that share one.
fn cores() -> Option<usize> {
    let mut sets = BTreeSet::new();
    for cpu in fs_err::read_dir("/sys/devices/system/cpu").ok()? {
        let path = cpu.ok()?.path().join("topology/thread_siblings_list");
        if let Some(siblings) = path.to_str().and_then(read) {
            sets.insert(siblings);
        }
    }
    (!sets.is_empty()).then_some(sets.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_memory_is_read_from_meminfo() {
        let text = "MemTotal:       24000000 kB\nMemFree:  1 kB\nMemAvailable:   20000000 kB\n";
        assert_eq!(available(text), Some(Bytes(20_000_000 * 1024)));
        assert_eq!(available("MemTotal: 3 kB\n"), None);
    }

    #[test]
    fn this_machine_has_memory_and_a_core() {
        let facts = HostFacts::read();
        assert!(facts.memory.0 > 0 && facts.workers > 0, "{facts:?}");
    }
}
