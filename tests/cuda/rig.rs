//! The card under test, and moving data to and from it.

use std::sync::OnceLock;

use aqueduct::card::command::{Command, CopyIn, CopyOut};
use aqueduct::card::cuda::{CudaCard, CudaSettings};
use aqueduct::card::{Card, HostMemory, Span, Stream, Watcher, Why};
use aqueduct::ops::{AttentionShape, KvType};
use aqueduct::quant::{QuantType, dequantize};
use aqueduct::units::{Bytes, CardId};

use crate::support::{compiler, devices, guarded};

pub const WHY: Why = Why("test");

/// The card and page-locked memory; `None`, with the reason printed, where there is no GPU.
pub fn rig() -> Option<&'static Rig> {
    static RIG: OnceLock<Option<Rig>> = OnceLock::new();
    RIG.get_or_init(Rig::open).as_ref()
}

pub struct Rig {
    pub card: CudaCard,
    pub memory: HostMemory,
}

pub fn shape(heads: usize, kv_heads: usize, dim: usize) -> AttentionShape {
    AttentionShape { heads, kv_heads, head_dim: dim, value_dim: dim, scale: 1.0 / (dim as f32).sqrt() }
}

impl Rig {
    fn open() -> Option<Self> {
        let devices = devices();
        let device = devices.first()?;
        println!("{device:?}");
        let mut attention = Vec::new();
        for dim in [64, 128, 256] {
            for kind in [KvType::F16, KvType::Int8] {
                attention.push((shape(1, 1, dim), kind));
            }
        }
        let settings = CudaSettings {
            card: CardId(0),
            ordinal: 0,
            budget: Bytes(device.memory.0 / 6),
            weights: QuantType::ALL.into(),
            attention,
            timeline: None,
            compiler: compiler(),
            guarded: guarded(),
        };
        let start = std::time::Instant::now();
        let card = CudaCard::open(settings).expect("the card opens");
        println!("opened in {:.1?}", start.elapsed());
        let memory = HostMemory::new(Watcher::default(), Some(card.page_lock()));
        Some(Self { card, memory })
    }

    /// Card memory with these bytes.
    pub fn upload(&self, bytes: &[u8]) -> Span {
        let span = self.space(bytes.len());
        let host = self.memory.alloc(bytes.len(), "upload").unwrap();
        host.whole().write(|to| to.copy_from_slice(bytes)).unwrap();
        self.run(Command::CopyIn(CopyIn { from: host.whole(), to: span }));
        self.drain();
        span
    }

    pub fn floats(&self, values: &[f32]) -> Span {
        self.upload(bytemuck::cast_slice(values))
    }

    /// Card memory filled with bytes that are no sensible number.
    pub fn poisoned(&self, bytes: usize) -> Span {
        self.upload(&vec![0xff; bytes])
    }

    pub fn space(&self, bytes: usize) -> Span {
        self.card.alloc(Bytes(bytes as u64), "test").expect("the budget lasts").whole()
    }

    pub fn run(&self, command: Command) {
        self.card.submit(Stream::Compute, command).expect("the command is taken");
    }

    pub fn drain(&self) {
        self.card.drain(Stream::Compute, WHY).expect("all commands end well");
    }

    pub fn download(&self, span: &Span) -> Vec<u8> {
        let host = self.memory.alloc(span.bytes, "download").unwrap();
        self.run(Command::CopyOut(CopyOut { from: *span, to: host.whole() }));
        self.drain();
        host.whole().read(<[u8]>::to_vec).unwrap()
    }

    pub fn read(&self, span: &Span) -> Vec<f32> {
        bytemuck::pod_collect_to_vec(&self.download(span))
    }
}

/// A small generator, so that every run sees the same numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.word() >> 33) as usize % n
    }

    /// Roughly normal.
    pub fn normal(&mut self) -> f32 {
        let sum: f32 = (0..4).map(|_| (self.word() >> 40) as f32 / (1 << 24) as f32).sum();
        (sum - 2.0) * 1.732
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// Blocks of a format with sensible scales.
    pub fn weights(&mut self, ty: QuantType, rows: usize, cols: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..rows * ty.row_bytes(cols).unwrap()).map(|_| (self.word() >> 32) as u8).collect();
        for block in bytes.chunks_exact_mut(ty.block_bytes()) {
            let halves: &[usize] = match ty {
                QuantType::F32 => {
                    block.copy_from_slice(&self.normal().to_le_bytes());
                    &[]
                }
                QuantType::BF16 => {
                    block.copy_from_slice(&half::bf16::from_f32(self.normal()).to_le_bytes());
                    &[]
                }
                QuantType::MXFP4 => {
                    block[0] = 118 + self.below(6) as u8;
                    &[]
                }
                QuantType::Q4_1 | QuantType::Q5_1 | QuantType::Q4_K | QuantType::Q5_K => &[0, 2],
                QuantType::Q2_K => &[80, 82],
                QuantType::Q3_K => &[108],
                QuantType::Q6_K => &[208],
                _ => &[0],
            };
            for at in halves {
                let scale = if ty == QuantType::F16 { self.normal() } else { self.normal() * 0.01 };
                block[*at..at + 2].copy_from_slice(&half::f16::from_f32(scale).to_le_bytes());
            }
        }
        bytes
    }
}

pub fn values(ty: QuantType, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut out = vec![0.0; elements];
    dequantize(ty, bytes, &mut out).unwrap();
    out
}

/// `w x` in f64, for `[rows, cols]` by `[outputs, cols]`.
pub fn product(x: &[f32], w: &[f32], cols: usize) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
    x.chunks_exact(cols).flat_map(|x| w.chunks_exact(cols).map(move |w| dot(x, w))).collect()
}

/// `|got - want| / |want|`; infinite where something is no number.
pub fn error(got: &[f32], want: &[f64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let (mut off, mut all) = (0.0, 1e-300);
    for (got, want) in got.iter().zip(want) {
        if !got.is_finite() {
            return f64::INFINITY;
        }
        off += (f64::from(*got) - want).powi(2);
        all += want * want;
    }
    (off / all).sqrt()
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}
