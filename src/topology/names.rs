//! The names of a file: what may be a name, which are declared, and which declared one was probably meant.

use std::ops::Range;

use super::diagnose::{Code, Diagnostic, nearest};
use super::raw::RawRig;
use super::reader::Reader;
use super::rig::Place;
use super::tree::{At, clip};
use crate::units::CardId;

/// Cards of one rig.
const MOST_CARDS: usize = 64;

/// Every name that a link, a pair or a pin can use.
pub(super) struct Names {
    known: Vec<(String, Place, Range<usize>)>,
}

impl Names {
    /// Takes the declared names; a name that cannot be one, or is taken, is a mistake.
    pub fn collect(reader: &mut Reader, rig: &RawRig) -> Self {
        let mut names = Self { known: vec![("host".to_owned(), Place::Host, 0..0)] };
        for (node, numa) in (0..).zip(&rig.host.numa) {
            names.known.push((format!("numa{node}"), Place::Numa(node), numa.at.clone()));
        }
        for (number, switch) in (0..).zip(&rig.switches) {
            names.declare(reader, switch, Place::Switch(number));
        }
        for (number, card) in (0..).zip(&rig.cards) {
            names.declare(reader, &card.name, Place::Card(CardId(number)));
        }
        if let Some(card) = rig.cards.get(MOST_CARDS) {
            reader.note(
                Diagnostic::new(Code::OutOfRange, card.name.at.clone(), format!("there are {} cards", rig.cards.len()))
                    .allowed(format!("at most {MOST_CARDS}"))
                    .fix("remove cards"),
            );
        }
        names
    }

    fn declare(&mut self, reader: &mut Reader, name: &At<String>, place: Place) {
        const ALLOWED: &str = "a letter, then letters, digits, `_` or `-`, at most 32; `host`, `numa0`, `numa1` ... mean the host's memory";
        let letters = name.value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-');
        let starts = name.value.starts_with(|c: char| c.is_ascii_alphabetic());
        let node = name.value.strip_prefix("numa").is_some_and(|node| node.bytes().all(|byte| byte.is_ascii_digit()));
        let spelt = letters && starts && name.value.len() <= 32;
        if !spelt || node || name.value == "host" {
            reader.note(
                Diagnostic::new(Code::BadName, name.at.clone(), format!("`{}` cannot be a name", clip(&name.value)))
                    .allowed(ALLOWED)
                    .fix("choose a name such as `gpu0` or `sw0`"),
            );
        }
        if let Some((_, _, first)) = self.known.iter().find(|(known, ..)| *known == name.value).filter(|_| spelt) {
            if name.value != "host" && !node {
                reader.note(
                    Diagnostic::new(Code::BadName, name.at.clone(), format!("the name `{}` is taken", name.value))
                        .allowed("a name of its own for each card and switch")
                        .fix("rename one of the two")
                        .also(first.clone(), "first here"),
                );
            }
            return;
        }
        self.known.push((name.value.clone(), place, name.at.clone()));
    }

    /// What a name means; an unknown one is a mistake.
    pub fn find(&self, reader: &mut Reader, what: &str, name: &At<String>) -> Option<Place> {
        self.resolve(reader, what, name, |_| true)
    }

    /// The card that a name means; anything else is a mistake.
    pub fn card(&self, reader: &mut Reader, what: &str, name: &At<String>) -> Option<CardId> {
        match self.resolve(reader, what, name, |place| matches!(place, Place::Card(_)))? {
            Place::Card(card) => Some(card),
            _ => None,
        }
    }

    fn resolve(
        &self,
        reader: &mut Reader,
        what: &str,
        name: &At<String>,
        fits: impl Fn(Place) -> bool,
    ) -> Option<Place> {
        let fitting = || self.known.iter().filter(|(_, place, _)| fits(*place));
        if let Some((_, place, _)) = fitting().find(|(known, ..)| *known == name.value) {
            return Some(*place);
        }
        let all: Vec<&str> = fitting().map(|(known, ..)| known.as_str()).collect();
        let fix = match nearest(&name.value, all.iter().copied()) {
            Some(near) => format!("write `{near}`, if that is meant"),
            None => "write one of these, or declare it".to_owned(),
        };
        reader.note(
            Diagnostic::new(
                Code::UnknownName,
                name.at.clone(),
                format!("{what} names `{}`, which is not declared", clip(&name.value)),
            )
            .allowed(if all.is_empty() { "the name of a declared card".to_owned() } else { all.join(", ") })
            .fix(fix),
        );
        None
    }

    /// The name of a place, for messages.
    pub fn of(&self, place: Place) -> String {
        self.known
            .iter()
            .find(|(_, known, _)| *known == place)
            .map_or_else(|| format!("{place:?}"), |(name, ..)| name.clone())
    }
}
