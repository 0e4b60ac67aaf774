//! Split sets: `prefix-00001-of-00003.gguf` and its neighbours.

use std::path::{Path, PathBuf};

use super::error::GgufError;
use super::metadata::Metadata;
use super::shard::Shard;
use super::value::Value;

const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// Missing names that an error lists.
const LISTED: usize = 8;

/// What a name of the form `prefix-00001-of-00003.gguf` says.
struct SplitName<'a> {
    prefix: &'a str,
    count: usize,
}

fn parse_name(name: &str) -> Option<SplitName<'_>> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| {
        (text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse::<usize>().ok())?
    };
    let (number, count) = (digits(number)?, digits(count)?);
    (number >= 1 && number <= count).then_some(SplitName { prefix, count })
}

/// The files of the model that `path` belongs to, in order: `path` alone, or the whole set if its name is one of a
/// set's.
///
/// # Errors
/// Names every file of the set that does not exist.
pub(super) fn find_shards(path: &Path) -> Result<Vec<PathBuf>, GgufError> {
    let Some(split) = path.file_name().and_then(|name| name.to_str()).and_then(parse_name) else {
        return Ok(vec![path.to_owned()]);
    };
    let (mut paths, mut missing, mut more) = (Vec::new(), Vec::new(), 0);
    for number in 1..=split.count {
        let name = format!("{}-{number:05}-of-{:05}.gguf", split.prefix, split.count);
        let path = path.with_file_name(&name);
        // What is there and no file is told as that when it is opened.
        if path.exists() {
            paths.push(path);
        } else if missing.len() < LISTED {
            missing.push(name);
        } else {
            more += 1;
        }
    }
    if missing.is_empty() {
        return Ok(paths);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Err(GgufError::ShardMissing { folder: folder.to_owned(), count: split.count, missing, more })
}

/// Checks that the file that was opened as number `number` (from 0) of `count` says so itself; gives the number of
/// tensors that it says the set has.
pub(super) fn check_part(
    file: &Path,
    metadata: &Metadata,
    number: usize,
    count: usize,
) -> Result<Option<u64>, GgufError> {
    let found_count = metadata.find::<u64>(COUNT)?;
    let found_number = metadata.find::<u64>(NUMBER)?;
    let tensors = metadata.find::<u64>(TENSORS)?;
    if count == 1 {
        return match found_count {
            None | Some(0 | 1) => Ok(tensors),
            Some(count) => {
                Err(GgufError::ShardRenamed { file: file.to_owned(), number: found_number.unwrap_or_default(), count })
            }
        };
    }
    for (key, found, wanted) in [(COUNT, found_count, count as u64), (NUMBER, found_number, number as u64)] {
        if found != Some(wanted) {
            let found = found.map_or_else(|| "nothing".to_owned(), |found| found.to_string());
            return Err(GgufError::ShardMismatch { file: file.to_owned(), number, count, key, found, wanted });
        }
    }
    Ok(tensors)
}

/// Checks that a later file of a set is of the first one's model, by the keys that both have: mostly the later ones
/// have none but those of the set.
pub(super) fn check_same_model(first: &Metadata, file: &Path, later: &Metadata) -> Result<(), GgufError> {
    const SAME: [&str; 4] = ["general.architecture", "general.name", "general.file_type", "general.uuid"];
    for key in SAME {
        if let (Some(wanted), Some(found)) = (first.get(key), later.get(key))
            && wanted != found
        {
            let short = |value: &Value| value.to_string().chars().take(60).collect();
            return Err(GgufError::ShardOfAnother {
                file: file.to_owned(),
                first: first.file().to_owned(),
                key,
                found: short(found),
                wanted: short(wanted),
            });
        }
    }
    Ok(())
}

/// Checks the number of tensors of the whole set against what each shard declares.
pub(super) fn check_tensor_count(shards: &[Shard], declared: &[Option<u64>], found: usize) -> Result<(), GgufError> {
    for (shard, wanted) in shards.iter().zip(declared) {
        if let Some(wanted) = *wanted
            && wanted != found as u64
        {
            return Err(GgufError::ShardTensorCount {
                file: shard.path().to_owned(),
                wanted,
                found,
                shards: shards.len(),
            });
        }
    }
    Ok(())
}
