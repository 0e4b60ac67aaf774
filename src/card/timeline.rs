//! What ran when on each stream, as a trace file for Perfetto and chrome://tracing.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use serde_json::json;

use super::{Command, Stream};
use crate::units::CardId;

/// A record of what ran; clones are the same record. Whoever may keep one holds an `Option<Timeline>`: without it
/// nothing is measured.
#[derive(Clone, Debug)]
pub struct Timeline(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    epoch: Instant,
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    cards: BTreeMap<CardId, String>,
    entries: Vec<Entry>,
    cut: u64,
}

/// Where something ran: a line of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// A card's stream.
    Stream(CardId, Stream),
    /// The CPU workers that compute experts.
    HostPool,
    /// A thread of the engine, by what it does.
    Thread(&'static str),
}

/// What kind of work an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// A computation.
    Kernel,
    /// A copy; its rate is shown.
    Copy,
    /// Time spent waiting.
    Wait,
}

impl Work {
    /// What a command is, and the bytes that it moves.
    pub fn of(command: &Command) -> (Self, Option<u64>) {
        match (command.copied(), command.read_over_link()) {
            (Some(bytes), _) => (Self::Copy, Some(bytes as u64)),
            (None, 0) => (Self::Kernel, None),
            (None, bytes) => (Self::Kernel, Some(bytes as u64)),
        }
    }
}

/// One stretch of work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it ran.
    pub track: Track,
    /// What it was.
    pub name: &'static str,
    /// Its kind.
    pub work: Work,
    /// Start, in nanoseconds since the record began.
    pub start: u64,
    /// End, likewise.
    pub end: u64,
    /// Bytes moved or touched, where that says something.
    pub bytes: Option<u64>,
    /// More about it, such as the reason of a wait.
    pub label: Option<Arc<str>>,
}

/// Entries kept unless another limit is given: about 100 MB.
const LIMIT: usize = 1_000_000;

impl Default for Timeline {
    fn default() -> Self {
        Self::new(LIMIT)
    }
}

impl Timeline {
    /// Begins a record that keeps at most `limit` entries; later ones are counted and the file says so.
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Inner { epoch: Instant::now(), limit, kept: Mutex::default() }))
    }

    /// Nanoseconds since the record began.
    pub fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// The moment in nanoseconds since the record began (0 if earlier).
    pub fn at(&self, moment: Instant) -> u64 {
        u64::try_from(moment.saturating_duration_since(self.0.epoch).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Gives a card its name for people.
    pub fn name_card(&self, card: CardId, name: &str) {
        self.kept().cards.insert(card, name.to_owned());
    }

    /// Adds an entry.
    pub fn record(&self, entry: Entry) {
        let mut kept = self.kept();
        if kept.entries.len() < self.0.limit {
            kept.entries.push(entry);
        } else {
            kept.cut += 1;
        }
    }

    /// A copy of all entries, in the order in which they ended on each track.
    pub fn entries(&self) -> Vec<Entry> {
        self.kept().entries.clone()
    }

    /// How many entries came after the limit was reached.
    pub fn cut(&self) -> u64 {
        self.kept().cut
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the record as Chrome trace events: a process for each card with a track for each of its streams, and one
    /// for the host.
    ///
    /// # Errors
    /// What the writer says.
    pub fn write_trace(&self, out: impl Write) -> io::Result<()> {
        let mut out = BufWriter::new(out);
        self.write_events(&mut out)?;
        out.flush()
    }

    fn write_events(&self, out: &mut impl Write) -> io::Result<()> {
        let kept = self.kept();
        let mut tracks: Vec<Track> = kept.entries.iter().map(|entry| entry.track).collect();
        tracks.sort_unstable();
        tracks.dedup();

        let mut events = Events { out, first: true };
        events.open()?;
        let mut processes = Vec::new();
        for (thread, track) in tracks.iter().enumerate() {
            let pid = track.process();
            if !processes.contains(&pid) {
                processes.push(pid);
                let name = kept.process_name(track);
                events.add(&json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}}))?;
            }
            events.add(
                &json!({"ph": "M", "name": "thread_name", "pid": pid, "tid": thread, "args": {"name": track.name()}}),
            )?;
            let sorted = json!({"sort_index": thread});
            events.add(&json!({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": thread, "args": sorted}))?;
        }
        for entry in &kept.entries {
            let thread = tracks.binary_search(&entry.track).unwrap_or_default();
            events.add(&entry.event(thread))?;
        }
        if kept.cut > 0 {
            let note = format!("cut: {} later entries were not kept (limit {})", kept.cut, self.0.limit);
            let last = kept.entries.iter().map(|entry| entry.end).max().unwrap_or_default();
            events.add(&json!({"ph": "i", "s": "g", "name": note, "ts": micros(last), "pid": HOST, "tid": 0}))?;
        }
        events.close()
    }
}

/// The process number of the host in a trace; cards are numbered from 1.
const HOST: u32 = 0;

impl Track {
    fn process(&self) -> u32 {
        match self {
            Self::Stream(card, _) => card.0 + 1,
            Self::HostPool | Self::Thread(_) => HOST,
        }
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Stream(_, stream) => stream.name(),
            Self::HostPool => "host pool",
            Self::Thread(name) => name,
        }
    }
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Copy => "copy",
            Self::Wait => "wait",
        }
    }
}

impl Kept {
    fn process_name(&self, track: &Track) -> String {
        match track {
            Track::Stream(card, _) => match self.cards.get(card) {
                Some(name) => format!("{card}: {name}"),
                None => card.to_string(),
            },
            Track::HostPool | Track::Thread(_) => "host".to_owned(),
        }
    }
}

impl Entry {
    fn event(&self, thread: usize) -> serde_json::Value {
        let took = self.end.saturating_sub(self.start);
        let mut args = serde_json::Map::new();
        if let Some(bytes) = self.bytes {
            args.insert("bytes".to_owned(), bytes.into());
            if self.work == Work::Copy && took > 0 {
                args.insert("GB/s".to_owned(), json!((bytes as f64 / took as f64 * 1e3).round() / 1e3));
            }
        }
        if let Some(label) = &self.label {
            args.insert("what".to_owned(), json!(**label));
        }
        json!({
            "ph": "X", "name": self.name, "cat": self.work.name(), "pid": self.track.process(), "tid": thread,
            "ts": micros(self.start), "dur": micros(took), "args": args,
        })
    }
}

/// Trace files count in microseconds.
fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

/// A trace file being written, one event a line.
struct Events<'a, W> {
    out: &'a mut W,
    first: bool,
}

impl<W: Write> Events<'_, W> {
    fn open(&mut self) -> io::Result<()> {
        self.out.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")
    }

    fn add(&mut self, event: &serde_json::Value) -> io::Result<()> {
        if !std::mem::replace(&mut self.first, false) {
            self.out.write_all(b",\n")?;
        }
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(track: Track, work: Work, start: u64, end: u64) -> Entry {
        Entry { track, name: "thing", work, start, end, bytes: Some(3_000), label: Some("why".into()) }
    }

    #[test]
    fn a_trace_has_a_process_a_card_and_a_track_a_stream() {
        let timeline = Timeline::new(3);
        timeline.name_card(CardId(1), "virtual 1");
        timeline.record(entry(Track::Stream(CardId(1), Stream::Experts), Work::Copy, 1_000, 3_000));
        timeline.record(entry(Track::Stream(CardId(1), Stream::Compute), Work::Wait, 0, 5_000));
        timeline.record(entry(Track::HostPool, Work::Kernel, 7_000, 8_000));
        timeline.record(entry(Track::HostPool, Work::Kernel, 8_000, 9_000));
        let mut file = Vec::new();
        timeline.write_events(&mut file).unwrap();
        let trace: serde_json::Value = serde_json::from_slice(&file).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let named = |name: &str| events.iter().filter(|event| event["name"] == name).collect::<Vec<_>>();

        let processes = named("process_name");
        assert_eq!(processes.len(), 2);
        assert_eq!(processes[0]["args"]["name"], "card 1: virtual 1");
        let tracks: Vec<_> = named("thread_name").iter().map(|event| event["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(tracks, ["compute", "experts", "host pool"]);

        let things = named("thing");
        assert_eq!(things.len(), 3, "the fourth is past the limit");
        let copy = things.iter().find(|event| event["cat"] == "copy").unwrap();
        assert_eq!((copy["ts"].as_f64(), copy["dur"].as_f64()), (Some(1.0), Some(2.0)));
        assert_eq!(copy["args"]["GB/s"].as_f64(), Some(1.5));
        assert_eq!(copy["args"]["what"], "why");
        assert!(events.iter().any(|event| event["name"].as_str().unwrap().starts_with("cut: 1 later")));
        assert_eq!(timeline.cut(), 1);
    }
}
