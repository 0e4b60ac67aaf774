//! Every key of a topology file, section by section: the reader, the suggestions for misspelt keys and the printed
//! reference all use this table.

/// One key of a section.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The key as it is written.
    pub name: &'static str,
    /// What its value may be.
    pub allowed: &'static str,
    /// What it means.
    pub meaning: &'static str,
}

/// The keys that may stand together under one parent.
#[derive(Debug)]
pub struct Section {
    /// Where the section stands, such as `rig.cards.NAME`.
    pub path: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, allowed: &'static str, meaning: &'static str) -> Key {
    Key { name, allowed, meaning }
}

/// Every section, from the top of the file downwards.
pub const SECTIONS: [&Section; 10] = [&TOP, &RIG, &HOST, &NUMA, &CARD, &LINK, &RUN, &KV, &PROMPT, &PINS];

pub(super) static TOP: Section = Section {
    path: "the file",
    keys: &[
        key("rig", "a map", "what the machine is: host, cards and how they are connected"),
        key("run", "a map", "how the model is to run on it"),
    ],
};

pub(super) static RIG: Section = Section {
    path: "rig",
    keys: &[
        key("host", "a map", "memory and CPU of the host"),
        key("cards", "a map from names to cards", "the cards, in the order in which they count"),
        key("switches", "a list of names", "PCIe switches; links connect them"),
        key(
            "links",
            "a list of links",
            "who is connected with whom; without it every card has its own default link to the host",
        ),
        key("peer", "false, or a list of pairs of cards", "which cards may read and write each other's memory"),
    ],
};

pub(super) static HOST: Section = Section {
    path: "rig.host",
    keys: &[
        key("memory", "bytes, such as 94 GiB", "memory that may be used; without it, what the machine has free"),
        key("rate", "a rate, such as 38 GB/s", "what the memory delivers when all cores and links read at once"),
        key("workers", "1 to 1024", "CPU threads that compute; without it, one for each core"),
        key("locked", "bytes, such as 64 GiB", "how much memory may be page-locked; without it, all"),
        key("disk", "a rate, such as 3 GB/s", "how fast the model's file is read, where not all of it fits in memory"),
        key("numa", "a list of nodes", "memory nodes, counted from 0; leave out where there is one"),
    ],
};

pub(super) static NUMA: Section = Section {
    path: "rig.host.numa[]",
    keys: &[
        key("memory", "bytes", "memory of this node; without it, an equal share of the host's"),
        key("rate", "a rate", "read rate of this node's memory; without it, an equal share of the host's"),
    ],
};

pub(super) static CARD: Section = Section {
    path: "rig.cards.NAME",
    keys: &[
        key(
            "kind",
            "cuda, virtual or sim",
            "a real GPU, a card computed by host threads, or a card that only advances a modelled clock",
        ),
        key("uuid", "GPU- and 36 characters", "which GPU it is, by UUID (nvidia-smi -L)"),
        key("pci", "such as 0000:01:00.0", "which GPU it is, by PCI address"),
        key("index", "0 to 255", "which GPU it is, by the driver's number, which may change between boots"),
        key("memory", "bytes, such as 20 GiB", "memory that may be used, the reserve included"),
        key("reserve", "bytes, such as 600 MiB", "memory left to the driver and to other programs"),
        key("rate", "a rate, such as 760 GB/s", "read rate of the card's memory"),
        key(
            "compute",
            "such as 59.5 TFLOP/s",
            "operations a second that prompts reach, for predictions; without it, 45 a byte of rate",
        ),
        key("numa", "a node's number", "the host's memory node that the card hangs on"),
        key("shared", "true or false", "whether another card may be on the same GPU, for tests of several cards"),
    ],
};

pub(super) static LINK: Section = Section {
    path: "rig.links[]",
    keys: &[
        key("from", "host, numa0, a switch or a card", "the end nearer to the host"),
        key("to", "a switch or a card", "the other end"),
        key("generation", "1 to 6", "PCIe generation that the slot runs at"),
        key("lanes", "1, 2, 4, 8 or 16", "PCIe lanes that the slot has"),
        key("h2d", "a rate, such as 12.1 GB/s", "measured rate away from the host"),
        key("d2h", "a rate, such as 12.6 GB/s", "measured rate towards the host"),
        key("rate", "a rate, such as 56 GB/s", "rate each way of a link between two cards (NVLink)"),
    ],
};

pub(super) static RUN: Section = Section {
    path: "run",
    keys: &[
        key("context", "1 to 16777216", "tokens of one sequence, prompt and answer together"),
        key("sequences", "1 to 1024", "sequences that are kept at the same time"),
        key("kv", "a map", "the cache of keys and values"),
        key("prompt", "a map", "how prompts are read"),
        key("hand_off", "auto, host, peer or nccl", "how hidden states cross from card to card"),
        key("pins", "a map", "decisions taken from the planner"),
        key("throttle", "off or on", "whether virtual cards slow their links to the declared rates"),
    ],
};

pub(super) static KV: Section = Section {
    path: "run.kv",
    keys: &[
        key("type", "f16, int8 or f32", "element type of the cache"),
        key(
            "resident_cells",
            "all, or a number",
            "cells of a sequence that stay on the card; later ones are streamed from the host",
        ),
        key(
            "staging",
            "auto, or a number",
            "cells of one layer that the staging pool holds, through which streamed cells pass during a prompt",
        ),
        key("prefetch", "off, on or auto", "whether streamed cells are copied ahead of the layer that reads them"),
        key(
            "host_share",
            "auto, or a percentage such as 25%",
            "how much of the streamed cells the CPU attends in decode; cards read the others over their links",
        ),
    ],
};

pub(super) static PROMPT: Section = Section {
    path: "run.prompt",
    keys: &[
        key("routed_stream", "off, on or auto", "whether the expert stream skips experts that no token is routed to"),
        key("depth", "1 to 64", "copies kept queued ahead of the link"),
        key("floor", "0 to 1048576", "tokens of a wave from which on experts are streamed ahead of the router"),
        key("ring", "auto, a number of slots, or bytes", "size of the ring through which streamed experts pass"),
        key("wave", "auto, or a number of tokens", "tokens that pass through a layer together"),
        key("host_pool", "off or on", "whether CPU workers compute experts for short prompts, too"),
    ],
};

pub(super) static PINS: Section = Section {
    path: "run.pins",
    keys: &[
        key("layers", "a map from cards to layers, such as gpu0: 0-23", "layers that a card must run"),
        key("experts", "a map from cards to slots, such as gpu0: 1200", "expert slots that a card must have"),
    ],
};
