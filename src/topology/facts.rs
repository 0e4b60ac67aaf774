//! What the operating system says about this machine, for the parts that a topology file leaves out.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use crate::units::Bytes;

/// Memory that is taken to be there where the system does not say: little.
const UNKNOWN: Bytes = Bytes(4 << 30);

/// Memory and cores of the machine at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// Memory that programs can have now, within the container's limit where there is one. Cached file pages count as
    /// free: the system gives them up for anything else.
    pub memory: Bytes,
    /// Cores, counted once where they run two threads, within the process's CPU mask.
    pub workers: u32,
}

impl HostFacts {
    /// Asks the operating system. What it does not tell is taken to be small: 4 GiB, one core.
    pub fn read() -> Self {
        Self::below(Path::new("/"))
    }

    /// As [`HostFacts::read`] on a system whose `/proc` and `/sys` stand in another folder.
    fn below(root: &Path) -> Self {
        let free = read(&root.join("proc/meminfo")).and_then(|text| available(&text)).unwrap_or(UNKNOWN);
        let memory = group_memory(root).map_or(free, |left| left.min(free));
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = cores(root).map_or(allowed, |cores| cores.min(allowed));
        Self { memory, workers: u32::try_from(cores.max(1)).unwrap_or(1) }
    }
}

/// Files of kernels are short. One that cannot be read, or is no text, says nothing.
fn read(path: &Path) -> Option<String> {
    fs_err::read_to_string(path).ok()
}

fn available(meminfo: &str) -> Option<Bytes> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    Some(Bytes(kib.saturating_mul(1024)))
}

/// Where a version of control groups keeps what.
struct Files {
    /// Files with limits; text that is no number is no limit.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of `memory.stat` with memory that is given up when it is needed, the groups below included.
    reclaimed: &'static [&'static str],
}

const V2: Files = Files {
    // Past `high` a group is slowed until it has given memory back, which a model cannot.
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimed: &["inactive_file", "active_file", "slab_reclaimable"],
};

const V1: Files = Files {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimed: &["total_inactive_file", "total_active_file"],
};

/// The least that any control group on the way from the root to this process leaves; `None` where none has a limit.
fn group_memory(root: &Path) -> Option<Bytes> {
    let own = read(&root.join("proc/self/cgroup")).unwrap_or_default();
    // Lines are `number:controllers:path`; version 2 has number 0 and no controllers.
    let group = |wanted: &dyn Fn(&str) -> bool| {
        own.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            wanted(controllers).then(|| path.to_owned())
        })
    };
    let v1 = group(&|controllers| controllers.split(',').any(|name| name == "memory")).unwrap_or_default();
    let v2 = group(&str::is_empty).unwrap_or_default();
    let mounts = [("sys/fs/cgroup", &v2, &V2), ("sys/fs/cgroup/unified", &v2, &V2), ("sys/fs/cgroup/memory", &v1, &V1)];
    mounts.into_iter().flat_map(|(mount, path, files)| left_along(&root.join(mount), path, files)).min()
}

/// What each group with a limit leaves, from the mounted root to `path`. In a container the path may be one that is
/// only there outside of it; the mounted root is then the container's own group, and what is not there has no limit.
fn left_along<'f>(mount: &Path, path: &str, files: &'f Files) -> impl Iterator<Item = Bytes> + use<'f> {
    let mut folders = vec![mount.to_owned()];
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => {
                let next = folders.last().map_or_else(PathBuf::new, |folder| folder.join(name));
                folders.push(next);
            }
            // A group above the one that this process sees as its root.
            Component::ParentDir => folders.truncate(1),
            _ => {}
        }
    }
    folders.into_iter().filter_map(|folder| left(&folder, files))
}

fn left(folder: &Path, files: &Files) -> Option<Bytes> {
    let number = |name: &str| read(&folder.join(name))?.trim().parse::<u64>().ok();
    let limit = files.limits.iter().filter_map(|name| number(name)).min()?;
    let stat = read(&folder.join("memory.stat")).unwrap_or_default();
    let reclaimed = files.reclaimed.iter().filter_map(|wanted| {
        let line = stat.lines().find_map(|line| line.strip_prefix(wanted)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    });
    let used = number(files.usage).unwrap_or(0).saturating_sub(reclaimed.fold(0, u64::saturating_add));
    Some(Bytes(limit.saturating_sub(used)))
}

/// Cores of the machine: the distinct sets of CPUs that share one.
fn cores(root: &Path) -> Option<usize> {
    let mut sets = BTreeSet::new();
    for cpu in fs_err::read_dir(root.join("sys/devices/system/cpu")).ok()? {
        sets.extend(read(&cpu.ok()?.path().join("topology/thread_siblings_list")));
    }
    (!sets.is_empty()).then_some(sets.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A system of these files.
    fn facts(files: &[(&str, String)]) -> HostFacts {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs_err::create_dir_all(path.parent().unwrap()).unwrap();
            fs_err::write(path, text).unwrap();
        }
        HostFacts::below(root.path())
    }

    fn gib(files: &[(&str, String)]) -> f64 {
        let meminfo = ("proc/meminfo", format!("MemTotal: 99 kB\nMemAvailable:   {} kB\n", 20 * GIB / 1024));
        facts(&[&[meminfo], files].concat()).memory.0 as f64 / GIB as f64
    }

    fn own(text: &str) -> (&'static str, String) {
        ("proc/self/cgroup", text.to_owned())
    }

    #[test]
    fn without_limits_it_is_what_the_system_has() {
        assert_eq!(gib(&[]), 20.0);
        assert_eq!(gib(&[("sys/fs/cgroup/memory.max", "max\n".into())]), 20.0);
        assert_eq!(gib(&[("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n".into())]), 20.0);
        assert_eq!(facts(&[]).memory, UNKNOWN, "nothing is told at all");
        assert_eq!(facts(&[("proc/meminfo", "MemAvailable: many kB".into())]).memory, UNKNOWN);
        assert!(facts(&[]).workers > 0);
    }

    #[test]
    fn cached_pages_of_a_group_are_free() {
        let group = |stat: String| {
            gib(&[
                ("sys/fs/cgroup/memory.max", (8 * GIB).to_string()),
                ("sys/fs/cgroup/memory.current", (7 * GIB).to_string()),
                ("sys/fs/cgroup/memory.stat", stat),
            ])
        };
        assert_eq!(group(String::new()), 1.0);
        let stat = |inactive: u64, active: u64| {
            format!("anon 1\nfile {}\ninactive_file {inactive}\nactive_file {active}\nslab_reclaimable 0\n", 9 * GIB)
        };
        assert_eq!(group(stat(5 * GIB, GIB)), 7.0);
        assert_eq!(group(stat(50 * GIB, GIB)), 8.0, "no more than the limit");
        let old = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", (8 * GIB).to_string()),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", (7 * GIB).to_string()),
            ("sys/fs/cgroup/memory/memory.stat", format!("inactive_file 1\ntotal_inactive_file {}\n", 6 * GIB)),
        ];
        assert_eq!(gib(&old), 7.0);
    }

    #[test]
    fn the_tightest_group_on_the_way_counts() {
        let max = |path: &'static str, limit: u64| (path, (limit * GIB).to_string());
        let outer = max("sys/fs/cgroup/user.slice/memory.max", 4);
        let inner = max("sys/fs/cgroup/user.slice/run.scope/memory.max", 6);
        let at = || own("0::/user.slice/run.scope\n");
        assert_eq!(gib(&[at(), inner.clone()]), 6.0);
        assert_eq!(gib(&[at(), inner.clone(), outer.clone()]), 4.0);
        let high = max("sys/fs/cgroup/user.slice/run.scope/memory.high", 3);
        assert_eq!(gib(&[at(), inner.clone(), outer.clone(), high]), 3.0);
        let used = ("sys/fs/cgroup/user.slice/run.scope/memory.current", (5 * GIB).to_string());
        assert_eq!(gib(&[at(), inner, outer.clone(), used]), 1.0, "the wider limit leaves less");
        assert_eq!(gib(&[own("0::/other\n"), outer.clone()]), 20.0, "another group's limit");
        // In a container the path may be the host's, or lead above what is seen.
        for path in ["0::/docker/abc\n", "0::/../../abc\n", "0::/\n", "", "no colon", "::"] {
            assert_eq!(gib(&[own(path), max("sys/fs/cgroup/memory.max", 2)]), 2.0, "{path:?}");
        }
        let v1 = own("12:cpu,cpuacct:/x\n4:memory:/a/b\n1:name=systemd:/a\n0::/\n");
        assert_eq!(gib(&[v1.clone(), max("sys/fs/cgroup/memory/a/memory.limit_in_bytes", 5)]), 5.0);
        assert_eq!(gib(&[v1.clone(), max("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", 3)]), 3.0);
        assert_eq!(gib(&[v1, max("sys/fs/cgroup/memory/x/memory.limit_in_bytes", 3)]), 20.0);
        assert_eq!(gib(&[at(), max("sys/fs/cgroup/unified/user.slice/memory.max", 9)]), 9.0, "both versions at once");
    }

    #[test]
    fn cores_with_two_threads_count_once() {
        let cpu = |path: &'static str, siblings: &str| (path, siblings.to_owned());
        let files = [
            cpu("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1\n"),
            cpu("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1\n"),
            cpu("sys/devices/system/cpu/present", "0-1\n"),
        ];
        assert_eq!(facts(&files).workers, 1);
    }

    #[test]
    fn this_machine_has_memory_and_a_core() {
        let facts = HostFacts::read();
        assert!(facts.memory.0 > 0 && facts.workers > 0, "{facts:?}");
    }
}
