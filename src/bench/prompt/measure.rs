//! One row: two arms over one engine and one sequence, alternating.

use std::time::Instant;

use super::{Arm, ArmSeen, Case, Observation, Row, Varied};
use crate::bench::{compare, greedy, order};
use crate::engine::{Cancel, Engine, EngineError, Sequence};
use crate::units::TokenId;

/// Tokens of the short text that the steps before a prompt continue.
const SHORT: usize = 32;

/// How a row is measured.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Cells of a sequence that stay on the card, as the row names them.
    pub resident: &'a str,
    /// What is read.
    pub case: &'a Case,
    /// Its tokens, cached and new.
    pub tokens: &'a [TokenId],
    /// The switches that the arms set.
    pub varied: Varied,
    /// Times each arm is measured.
    pub pairs: usize,
    /// Times each arm runs before, uncounted: the first run touches memory for the first time.
    pub warm_up: usize,
    /// Decode steps before the prompt.
    pub before: usize,
    /// Decode steps after it.
    pub after: usize,
}

impl Task<'_> {
    /// Tokens that the sequence must have room for.
    pub fn context(case: &Case, before: usize, after: usize) -> usize {
        (case.total() + after).max(case.cached.max(SHORT) + before)
    }
}

/// What must be the same bits in every observation.
#[derive(Clone, PartialEq)]
struct Reply {
    logits: Vec<u32>,
    answer: Vec<TokenId>,
}

/// Measures both arms.
///
/// # Errors
/// What the engine says; a row is measured with both arms or not at all.
pub fn measure(engine: &mut Engine, arms: &[Arm; 2], task: &Task<'_>, cancel: &Cancel) -> Result<Row, EngineError> {
    let mut sequence = engine.sequence()?;
    let mut seen = arms.each_ref().map(|arm| ArmSeen { name: arm.name.clone(), observations: Vec::new() });
    let mut first: Option<Reply> = None;
    let mut same_replies = true;
    let mut streams_nothing = true;
    if let Some(cached) = task.tokens.get(..task.case.cached).filter(|cached| !cached.is_empty()) {
        engine.prompt(&mut sequence, cached, cancel)?;
    }
    for round in 0..task.warm_up + task.pairs {
        for i in order(arms.len(), round.abs_diff(task.warm_up)) {
            let (Some(arm), Some(seen)) = (arms.get(i), seen.get_mut(i)) else { continue };
            engine.read_prompts_by(&arm.plan)?;
            let (observation, reply) = observe(engine, &mut sequence, task, cancel)?;
            streams_nothing &= !task.varied.acts_on(&observation.counts());
            same_replies &= *first.get_or_insert_with(|| reply.clone()) == reply;
            if round >= task.warm_up {
                seen.observations.push(observation);
            }
        }
        // More pairs of a row in which both arms do the same say nothing.
        if streams_nothing && round >= task.warm_up {
            break;
        }
    }
    let [off, on] = &seen;
    let compared = |of: fn(&Observation) -> f64| compare(&off.times(of), &on.times(of));
    Ok(Row {
        resident: task.resident.to_owned(),
        case: task.case.clone(),
        steps: (task.before, task.after),
        prefill: compared(|seen| seen.prefill_seconds),
        request: compared(Observation::request_seconds),
        arms: seen,
        streams_nothing,
        same_replies,
    })
}

/// Steps, the new tokens, and the answer; leaves the sequence with the cached tokens.
fn observe(
    engine: &mut Engine,
    sequence: &mut Sequence,
    task: &Task<'_>,
    cancel: &Cancel,
) -> Result<(Observation, Reply), EngineError> {
    let before_seconds = steps_before(engine, sequence, task, cancel)?;
    sequence.truncate(task.case.cached)?;

    let counts = engine.counts();
    let begin = Instant::now();
    let new = task.tokens.get(task.case.cached..).unwrap_or_default();
    let mut logits = engine.prompt(sequence, new, cancel)?;
    let prefill_seconds = begin.elapsed().as_secs_f64();
    let stages = engine.counts().iter().zip(&counts).map(|(now, before)| now.since(before)).collect();

    let bits = logits.iter().map(|logit| logit.to_bits()).collect();
    let begin = Instant::now();
    let mut answer = Vec::with_capacity(task.after);
    for _ in 0..task.after {
        let next = greedy(&logits);
        answer.push(next);
        logits = engine.step(&mut [(sequence, next)], cancel)?.pop().unwrap_or_default();
    }
    let after_seconds = begin.elapsed().as_secs_f64();
    sequence.truncate(task.case.cached)?;
    let observation = Observation { before_seconds, prefill_seconds, after_seconds, stages };
    Ok((observation, Reply { logits: bits, answer }))
}

/// Seconds of the decode steps before the new tokens: behind the cached ones, or behind a short text where there are
/// none.
fn steps_before(
    engine: &mut Engine,
    sequence: &mut Sequence,
    task: &Task<'_>,
    cancel: &Cancel,
) -> Result<f64, EngineError> {
    if task.before == 0 {
        return Ok(0.0);
    }
    if task.case.cached == 0 {
        engine.prompt(sequence, task.tokens.get(..SHORT).unwrap_or(task.tokens), cancel)?;
    }
    let begin = Instant::now();
    for token in task.tokens.iter().cycle().skip(sequence.tokens()).take(task.before) {
        engine.step(&mut [(sequence, *token)], cancel)?;
    }
    Ok(begin.elapsed().as_secs_f64())
}
