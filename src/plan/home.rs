//! Where experts live: which of them the host's arena holds, which stay on a card, which are read from the model's
//! file.

use std::fmt;
use std::ops::Range;

use super::pool::ExpertsPlan;
use crate::model::ModelSpec;
use crate::units::Bytes;

/// Where the bytes of an expert are found when a card or the host pool wants them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// On its card at all times: read from the file once, when the model is loaded.
    Card,
    /// In the host's arena.
    Arena,
    /// In the model's file, read whenever it is wanted.
    File,
}

/// The homes of all experts of a model.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Homes(Vec<Vec<Home>>);

impl Homes {
    /// Experts that always stay on a card need no other place; of the others `room` bytes have one in the arena: first
    /// those that no card holds, which every prompt and every decode step may want, then residents that give way to
    /// the ring, then those that give way to the staging pool. What is left is read from the file.
    pub(super) fn choose(spec: &ModelSpec, pools: &[&ExpertsPlan], room: usize) -> Self {
        let experts = |layer: usize| spec.layers.get(layer).and_then(|layer| layer.experts());
        let mut homes: Vec<Vec<Home>> =
            (0..spec.layers.len()).map(|i| vec![Home::File; experts(i).map_or(0, |of| of.experts)]).collect();
        // The class of an expert that no card holds; residents get theirs below.
        let mut classes: Vec<Vec<u8>> = homes.iter().map(|of| vec![0; of.len()]).collect();
        for experts in pools {
            let (stays, ring) = (experts.stays(), experts.residents.len() - experts.displaced);
            for (i, at) in experts.residents.iter().enumerate() {
                if let (Some(home), Some(class)) = (at.of_mut(&mut homes), at.of_mut(&mut classes)) {
                    match i {
                        _ if i < stays => *home = Home::Card,
                        _ if i < ring => *class = 2,
                        _ => *class = 1,
                    }
                }
            }
        }
        let mut wanted: Vec<(u8, usize, usize)> = Vec::new();
        for (layer, (homes, classes)) in homes.iter().zip(&classes).enumerate() {
            let of = homes.iter().zip(classes).enumerate().filter(|(_, (home, _))| **home != Home::Card);
            wanted.extend(of.map(|(expert, (_, class))| (*class, expert, layer)));
        }
        wanted.sort_unstable();
        let mut left = room;
        for (_, expert, layer) in wanted {
            let bytes = experts(layer).map_or(0, |of| of.blob().bytes);
            let Some(rest) = left.checked_sub(bytes) else { break };
            left = rest;
            homes.iter_mut().skip(layer).take(1).flat_map(|of| of.iter_mut().skip(expert).take(1)).for_each(|home| {
                *home = Home::Arena;
            });
        }
        Self(homes)
    }

    /// The homes of a layer's experts; none for a dense one.
    pub fn of_layer(&self, layer: usize) -> &[Home] {
        self.0.get(layer).map_or(&[], Vec::as_slice)
    }

    /// Bytes of the experts of some layers that live there.
    pub(super) fn bytes(&self, spec: &ModelSpec, layers: Range<usize>, wanted: Home) -> usize {
        let own = spec.layers.iter().zip(&self.0).skip(layers.start).take(layers.len());
        let experts = own.filter_map(|(layer, homes)| Some((layer.experts()?, homes)));
        experts.map(|(of, homes)| homes.iter().filter(|home| **home == wanted).count() * of.blob().bytes).sum()
    }

    /// How many experts live there, and their bytes.
    pub fn count(&self, spec: &ModelSpec, wanted: Home) -> (usize, Bytes) {
        let of = |(layer, homes): (usize, &Vec<Home>)| {
            let count = homes.iter().filter(|home| **home == wanted).count();
            let blob = spec.layers.get(layer).and_then(|layer| layer.experts()).map_or(0, |of| of.blob().bytes);
            (count, count * blob)
        };
        let (count, bytes) = self.0.iter().enumerate().map(of).fold((0, 0), |all, of| (all.0 + of.0, all.1 + of.1));
        (count, Bytes(bytes as u64))
    }
}

impl fmt::Debug for Homes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: Home| self.0.iter().flatten().filter(|home| **home == wanted).count();
        let [cards, arena, file] = [Home::Card, Home::Arena, Home::File].map(count);
        write!(f, "{cards} experts on cards only, {arena} in the arena, {file} in the file")
    }
}
