//! Formats: every block of the reference set, bit for bit, and the arithmetic of sizes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;
use std::io::Cursor;

use aqueduct::quant::{QuantError, QuantType, dequantize, type_name};

/// The members of an archive without compression, by name.
fn members(archive: &[u8]) -> BTreeMap<String, &[u8]> {
    let u16_at = |at: usize| usize::from(u16::from_le_bytes(archive[at..at + 2].try_into().unwrap()));
    let u32_at = |at: usize| u32::from_le_bytes(archive[at..at + 4].try_into().unwrap()) as usize;
    let end = archive.windows(4).rposition(|w| w == b"PK\x05\x06").unwrap();
    let mut at = u32_at(end + 16);
    let mut all = BTreeMap::new();
    for _ in 0..u16_at(end + 10) {
        let (size, name, extra, comment) = (u32_at(at + 20), u16_at(at + 28), u16_at(at + 30), u16_at(at + 32));
        let local = u32_at(at + 42);
        let data = local + 30 + u16_at(local + 26) + u16_at(local + 28);
        let key = String::from_utf8(archive[at + 46..at + 46 + name].to_vec()).unwrap();
        all.insert(key, &archive[data..data + size]);
        at += 46 + name + extra + comment;
    }
    all
}

fn array<T: npyz::Deserialize>(bytes: &[u8]) -> Vec<T> {
    npyz::NpyFile::new(Cursor::new(bytes)).unwrap().into_vec().unwrap()
}

#[test]
fn every_block_is_exact() {
    let archive = fs_err::read("tests/data/oracle/quants/blocks.npz").unwrap();
    let members = members(&archive);
    let mut compared = BTreeMap::new();
    for ty in QuantType::ALL {
        let Some(bytes) = members.get(&format!("{ty}.bytes.npy")) else { continue };
        let bytes: Vec<u8> = array(bytes);
        let values: Vec<f32> = array(members[&format!("{ty}.values.npy")]);
        let mut out = vec![f32::NAN; values.len()];
        dequantize(ty, &bytes, &mut out).unwrap();
        for (i, (found, wanted)) in out.iter().zip(&values).enumerate() {
            assert!(found.to_bits() == wanted.to_bits(), "{ty} element {i}: {found:e} instead of {wanted:e}");
        }
        compared.insert(ty, values.len());
    }
    println!("elements compared: {compared:?}");
    let missing: Vec<_> = QuantType::ALL.into_iter().filter(|ty| !compared.contains_key(ty)).collect();
    assert_eq!(missing, [QuantType::F32], "the reference set has every format but plain F32");
    let mut out = [0.0; 2];
    dequantize(QuantType::F32, &[0, 0, 128, 63, 0, 0, 0, 192], &mut out).unwrap();
    assert_eq!(out, [1.0, -2.0]);
}

#[test]
fn sizes_are_checked() {
    assert_eq!(QuantType::Q4_K.row_bytes(512), Some(288));
    assert_eq!(QuantType::Q4_K.row_bytes(511), None);
    assert_eq!(QuantType::Q4_K.row_bytes(0), Some(0));
    assert_eq!(QuantType::F32.row_bytes(usize::MAX / 2), None);
    let mut out = [0.0; 33];
    let part = dequantize(QuantType::Q8_0, &[0; 34], &mut out).unwrap_err();
    assert_eq!(part, QuantError::PartBlock { ty: QuantType::Q8_0, elements: 33, block: 32 });
    let length = dequantize(QuantType::Q8_0, &[0; 33], &mut out[..32]).unwrap_err();
    assert_eq!(length.to_string(), "32 elements of Q8_0 take 34 bytes, but 33 were given");
}

#[test]
fn ids_and_names_go_both_ways() {
    for ty in QuantType::ALL {
        assert_eq!(QuantType::from_id(ty.id()), Some(ty));
        assert_eq!(type_name(ty.id()), Some(ty.name()));
        assert_eq!(serde_json::to_string(&ty).unwrap(), format!("\"{ty}\""));
        assert_eq!(serde_json::from_str::<QuantType>(&format!("\"{ty}\"")).unwrap(), ty);
    }
    for (id, name) in [(9, "Q8_1"), (19, "IQ1_S"), (29, "IQ1_M"), (40, "NVFP4"), (42, "Q2_0")] {
        assert_eq!((QuantType::from_id(id), type_name(id)), (None, Some(name)));
    }
    assert_eq!(type_name(1000), None);
}
