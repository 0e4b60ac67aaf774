//! Starting and stopping leaves nothing behind: no memory of the host or a card, no thread, no file. Alone in their
//! process, one at a time, since these tests look at all that the process holds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

mod support;

use std::sync::{Mutex, PoisonError};

use aqueduct::engine::Engine;
use aqueduct::topology::{RunSettings, Share};
use support::stories::{Way, answer, open, story};
use support::{gpu, held, least};
use support::{plan_for, rig};

static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn thirty_starts_and_stops_leave_no_memory_thread_or_file_behind() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const MODEL: &str = "qwen3moe-f32";
    let story = story("outgrown", &open(MODEL), 2, Way::Outgrown, 0, 60);
    let mut wanted = None;
    held::stays(30, 8 << 20, || {
        let model = open(MODEL);
        let plan = plan_for(&model, &story.memory, &story.settings).unwrap();
        let test = rig(&story.memory, 2);
        let mut engine = Engine::load(model, plan, &test.rig, &|_| {}).unwrap();
        let found = answer(&mut engine, &story.tokens).unwrap();
        assert!(found == *wanted.get_or_insert_with(|| found.clone()), "other bits after another start");
        let counts = engine.counts();
        let all = counts.iter().skip(1).fold(counts[0], |all, counts| all.plus(counts));
        assert!(all.streamed > 0 && all.kv_prefetched_bytes > 0, "{all:?}");
        assert!(all.kv_host_cells > 0 && all.kv_link_cells > 0, "{all:?}");
        assert_eq!(test.ledger.violations(), Vec::<String>::new());
    });
}

#[test]
fn a_hundred_starts_and_stops_leave_no_memory_behind() {
    if !gpu::there_is_a_gpu() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let model = open("qwen3moe-hd128-ud");
    let mut settings: RunSettings = gpu::streaming();
    settings.kv.host_share = Share::Percent(50);
    let memory = [least(|bytes| gpu::plan_for(&model, &[bytes], &settings).is_ok())];
    let tokens: Vec<u32> = (0..110).map(|i| (i * 37 + 11) % 500).collect();
    let mut wanted = None;
    let mut device = Vec::new();
    held::stays(100, 32 << 20, || {
        let (rig, _, free) = gpu::rig(&model, &memory, &settings, None);
        let mut engine = gpu::load(&model, &memory, &settings, &rig);
        let found = gpu::story(&mut engine, &tokens, &[5, 9]);
        assert!(found == *wanted.get_or_insert_with(|| found.clone()), "other bits in cycle {}", device.len());
        let counts = engine.counts()[0];
        assert!(counts.streamed > 0 && counts.kv_host_cells > 0 && counts.kv_link_cells > 0, "{counts:?}");
        device.push(free);
    });
    println!("free device memory: {} in the first cycles, {} in the last", device[held::FIRST], device[99]);
    assert_eq!(device[held::FIRST], device[99], "device memory that was not given back: {device:?}");
}
