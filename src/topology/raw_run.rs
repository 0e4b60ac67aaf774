//! The `run` part as it is written. Only its pins name cards, so all else becomes settings at once.

use std::ops::Range;

use super::diagnose::{Code, Diagnostic};
use super::keys;
use super::reader::{Fields, Reader};
use super::settings::{
    HandOff, KvSettings, PromptSettings, ResidentCells, Ring, RunSettings, Share, Staging, Switch, Wave,
};
use super::tree::{At, Item, clip};
use crate::ops::KvType;
use crate::units::Bytes;

const MOST_TOKENS: u32 = 1 << 24;
const MOST_LAYERS: u32 = 10_000;
const MOST_SLOTS: u32 = 10_000_000;

#[derive(Default)]
pub(super) struct RawRun {
    /// Everything but the pins.
    pub settings: RunSettings,
    pub hand_off_at: Range<usize>,
    pub layers: Vec<RawLayerPin>,
    pub experts: Vec<RawExpertPin>,
}

pub(super) struct RawLayerPin {
    pub card: At<String>,
    pub at: Range<usize>,
    pub first: u32,
    pub last: Option<u32>,
}

pub(super) struct RawExpertPin {
    pub card: At<String>,
    pub slots: u32,
}

pub(super) fn read_run(reader: &mut Reader, key_at: Range<usize>, item: &Item) -> RawRun {
    let fields = reader.fields(&keys::RUN, "`run`", key_at, item);
    let default = RunSettings::default();
    let words = [("auto", HandOff::Auto), ("host", HandOff::Host), ("peer", HandOff::Peer), ("nccl", HandOff::Nccl)];
    let hand_off = reader.choice(&fields, "hand_off", &words);
    let kv = fields.get("kv").map_or(default.kv, |entry| read_kv(reader, entry.key.at.clone(), &entry.value));
    let prompt =
        fields.get("prompt").map_or(default.prompt, |entry| read_prompt(reader, entry.key.at.clone(), &entry.value));
    let (mut layers, mut experts) = (Vec::new(), Vec::new());
    if let Some(entry) = fields.get("pins") {
        let pins = reader.fields(&keys::PINS, "`pins`", entry.key.at.clone(), &entry.value);
        layers = read_layers(reader, &pins);
        experts = read_experts(reader, &pins);
    }
    RawRun {
        settings: RunSettings {
            context: reader.number(&fields, "context", 1..=MOST_TOKENS).map_or(default.context, |n| n.value),
            sequences: reader.number(&fields, "sequences", 1..=1024).map_or(default.sequences, |n| n.value),
            kv,
            prompt,
            hand_off: hand_off.as_ref().map_or(default.hand_off, |word| word.value),
            pins: default.pins,
            throttle: on_off(reader, &fields, "throttle").unwrap_or(default.throttle),
        },
        hand_off_at: hand_off.map_or(0..0, |word| word.at),
        layers,
        experts,
    }
}

fn read_kv(reader: &mut Reader, key_at: Range<usize>, item: &Item) -> KvSettings {
    let fields = reader.fields(&keys::KV, "`kv`", key_at, item);
    let default = KvSettings::default();
    let types = [("f16", KvType::F16), ("int8", KvType::Int8), ("f32", KvType::F32)];
    let cells = reader.text(&fields, "resident_cells").and_then(|text| match text.value.as_str() {
        "all" => Some(ResidentCells::All),
        _ => word_or_number(reader, "resident_cells", "all", &text, 0..=MOST_TOKENS).map(ResidentCells::First),
    });
    let staging = reader.text(&fields, "staging").and_then(|text| match text.value.as_str() {
        "auto" => Some(Staging::Auto),
        _ => word_or_number(reader, "staging", "auto", &text, 1..=MOST_TOKENS).map(Staging::Cells),
    });
    let share = reader.text(&fields, "host_share").and_then(|text| read_share(reader, &text));
    KvSettings {
        kind: reader.choice(&fields, "type", &types).map_or(default.kind, |word| word.value),
        resident_cells: cells.unwrap_or(default.resident_cells),
        staging: staging.unwrap_or(default.staging),
        prefetch: switch(reader, &fields, "prefetch").unwrap_or(default.prefetch),
        host_share: share.unwrap_or(default.host_share),
    }
}

fn read_share(reader: &mut Reader, text: &At<String>) -> Option<Share> {
    if text.value == "auto" {
        return Some(Share::Auto);
    }
    let percent = text.value.strip_suffix('%').map(str::trim_end).and_then(|number| number.parse::<u32>().ok());
    if let Some(percent) = percent.filter(|percent| *percent <= 100) {
        return Some(Share::Percent(percent));
    }
    reader.note(
        Diagnostic::new(Code::WrongValue, text.at.clone(), format!("`host_share` of `kv` is `{}`", clip(&text.value)))
            .allowed("`auto`, or a whole percentage from `0%` to `100%`")
            .fix("write `auto` to leave it to the planner"),
    );
    None
}

fn read_prompt(reader: &mut Reader, key_at: Range<usize>, item: &Item) -> PromptSettings {
    let fields = reader.fields(&keys::PROMPT, "`prompt`", key_at, item);
    let default = PromptSettings::default();
    let ring = reader.text(&fields, "ring").and_then(|text| read_ring(reader, &text));
    let wave = reader.text(&fields, "wave").and_then(|text| match text.value.as_str() {
        "auto" => Some(Wave::Auto),
        value => {
            let tokens = At { value: value.trim_end_matches("tokens").trim_end().to_owned(), at: text.at.clone() };
            word_or_number(reader, "wave", "auto", &tokens, 1..=MOST_TOKENS).map(Wave::Tokens)
        }
    });
    PromptSettings {
        routed_stream: switch(reader, &fields, "routed_stream").unwrap_or(default.routed_stream),
        depth: reader.number(&fields, "depth", 1..=64).map_or(default.depth, |n| n.value),
        floor: reader.number(&fields, "floor", 0..=1 << 20).map_or(default.floor, |n| n.value),
        ring: ring.unwrap_or(default.ring),
        wave: wave.unwrap_or(default.wave),
        host_pool: on_off(reader, &fields, "host_pool").unwrap_or(default.host_pool),
    }
}

fn read_ring(reader: &mut Reader, text: &At<String>) -> Option<Ring> {
    if text.value == "auto" {
        return Some(Ring::Auto);
    }
    if let Ok(bytes) = text.value.parse::<Bytes>() {
        return Some(Ring::Bytes(bytes));
    }
    let slots = text.value.trim_end_matches("slots").trim_end();
    if slots.bytes().all(|byte| byte.is_ascii_digit()) && !slots.is_empty() {
        let slots = At { value: slots.to_owned(), at: text.at.clone() };
        return reader.parse_number("`ring` of `prompt`", &slots, 1..=MOST_SLOTS).map(|slots| Ring::Slots(slots.value));
    }
    reader.note(
        Diagnostic::new(Code::WrongValue, text.at.clone(), format!("`ring` of `prompt` is `{}`", clip(&text.value)))
            .allowed("`auto`, a number of slots such as `64`, or bytes with their unit such as `2 GiB`")
            .fix("write `auto` to leave it to the planner"),
    );
    None
}

/// A number where a word is allowed, too; the word itself has been seen to before.
fn word_or_number(
    reader: &mut Reader,
    key: &str,
    word: &'static str,
    text: &At<String>,
    range: std::ops::RangeInclusive<u32>,
) -> Option<u32> {
    if text.value.starts_with(|c: char| c.is_ascii_digit()) {
        return reader.parse_number(&format!("`{key}`"), text, range).map(|number| number.value);
    }
    reader.note(
        Diagnostic::new(Code::WrongValue, text.at.clone(), format!("`{key}` is `{}`", clip(&text.value)))
            .allowed(format!("`{word}`, or a whole number from {} to {}", range.start(), range.end()))
            .fix(format!("write `{word}`, if that is meant")),
    );
    None
}

fn switch(reader: &mut Reader, fields: &Fields<'_>, key: &'static str) -> Option<Switch> {
    let words = [("off", Switch::Off), ("on", Switch::On), ("auto", Switch::Auto)];
    reader.choice(fields, key, &words).map(|word| word.value)
}

fn on_off(reader: &mut Reader, fields: &Fields<'_>, key: &'static str) -> Option<bool> {
    reader.choice(fields, key, &[("off", false), ("on", true)]).map(|word| word.value)
}

fn read_layers(reader: &mut Reader, pins: &Fields<'_>) -> Vec<RawLayerPin> {
    let Some(entry) = pins.get("layers") else { return Vec::new() };
    let mut layers = Vec::new();
    for pin in reader.named("`layers` of `pins`", "gpu0: 0-23", &entry.value) {
        let what = format!("the layer pin of `{}`", clip(&pin.key.value));
        let Some(text) = reader.item_text(&what, "layers, such as `0-23`", &pin.key.at, &pin.value) else { continue };
        match layer_range(&text.value) {
            Some((first, last)) => layers.push(RawLayerPin { card: pin.key.clone(), at: text.at, first, last }),
            None => reader.note(
                Diagnostic::new(Code::WrongValue, text.at, format!("{what} is `{}`", clip(&text.value)))
                    .allowed("`FIRST-LAST` counted from 0, both included, such as `0-23`; `24-` to the model's last; or one layer, `7`")
                    .fix("write the smaller number first, and a hyphen between the two"),
            ),
        }
    }
    layers
}

fn layer_range(text: &str) -> Option<(u32, Option<u32>)> {
    let number = |text: &str| {
        let text = text.trim();
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        digits.then(|| text.parse::<u32>().ok()).flatten().filter(|layer| *layer < MOST_LAYERS)
    };
    match text.split_once('-') {
        None => number(text).map(|layer| (layer, Some(layer))),
        Some((first, "")) => number(first).map(|first| (first, None)),
        Some((first, last)) => {
            let (first, last) = (number(first)?, number(last)?);
            (first <= last).then_some((first, Some(last)))
        }
    }
}

fn read_experts(reader: &mut Reader, pins: &Fields<'_>) -> Vec<RawExpertPin> {
    let Some(entry) = pins.get("experts") else { return Vec::new() };
    let mut experts = Vec::new();
    for pin in reader.named("`experts` of `pins`", "gpu0: 1200", &entry.value) {
        let what = format!("the expert pin of `{}`", clip(&pin.key.value));
        let slots = reader
            .item_text(&what, "a number of slots, such as `1200`", &pin.key.at, &pin.value)
            .and_then(|text| reader.parse_number(&what, &text, 0..=MOST_SLOTS));
        if let Some(slots) = slots {
            experts.push(RawExpertPin { card: pin.key.clone(), slots: slots.value });
        }
    }
    experts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_ranges_read_as_they_look() {
        assert_eq!(layer_range("0-23"), Some((0, Some(23))));
        assert_eq!(layer_range("24 - 47"), Some((24, Some(47))));
        assert_eq!(layer_range("24-"), Some((24, None)));
        assert_eq!(layer_range("7"), Some((7, Some(7))));
        for bad in ["", "-", "-3", "23-0", "0-1-2", "a-b", "0..3", "+1-2", "99999999"] {
            assert_eq!(layer_range(bad), None, "{bad}");
        }
    }
}
